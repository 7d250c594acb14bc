"""The charts in C++, for the CPU.

- native.py: calls of the kernel: stacks
- network.py: calls of the kernel: attention, dropout and LSTMs
- kernel/: the C++ sources; module.cpp is the Python module `_kernel`
"""
