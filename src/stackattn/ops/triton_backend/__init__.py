"""The charts in Triton, for GPUs. Triton is imported only if the backend is used.

- kernels.py: the kernels; window_kernels.py: those of the windowed stack
- launches.py: their launch configurations
- charts.py, band.py: charts filled by the kernels
- operators.py, window.py: forward and backward passes, in parts that fit into memory
- availability.py: whether the backend can be used, and the comparison with `torch` at its first use
"""
