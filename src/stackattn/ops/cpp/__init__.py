"""The charts in C++, for the CPU.

- native.py: calls of the kernel with tensors
- kernel/: the C++ sources; module.cpp is the Python module `_kernel`
"""
