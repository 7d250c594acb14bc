"""Benchmarks: `python -m benchmarks` measures the declared cases and writes `results/`.

`registry` declares the cases, `steps` sets up what they run, `measure` measures time and memory, `targets` compares the
results with the targets, and `report` writes them. No speed is reported unless the tests of the cases pass.
"""
