"""The C++ kernel, for the CPU: charts, and parts of ordinary networks.

- native.py: calls to the kernel for stacks
- network.py: calls to the kernel for attention, dropout, cross-entropy and LSTMs
- kernel/: the C++ sources; module.cpp is the Python module `_kernel`
"""
