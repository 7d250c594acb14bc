"""The charts in Triton, for GPUs. Triton is imported only if the backend is used.

- kernels.py: the kernels
- launches.py: their launch configurations
- charts.py: charts filled by the kernels
- operators.py: forward and backward pass of both operators, in parts that fit into memory
- availability.py: whether the backend can be used, and the comparison with `torch` at its first use
"""
