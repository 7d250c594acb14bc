"""Benchmarks: `python -m benchmarks` measures the declared cases and writes `results/`.

`registry` declares the cases, `steps`, `long`, `models`, `sentences` and `translation` set up what they run, `measure`
measures time and memory, `targets` compares the results with the targets, and `report` writes them. Results are written
only if the tests of the cases pass. `gpu` measures the operators on a GPU.

Other programs: `python -m benchmarks.compare` (two commits), `python -m benchmarks.plan` (cost of the paper's
experiments), `python -m benchmarks.profile` (parts of a training step or run) and `python benchmarks/languages.py`.
"""
