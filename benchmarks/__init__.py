"""Benchmarks: `python -m benchmarks` measures the declared cases and writes `results/`.

`registry` declares the cases, `steps` sets up what they run, `measure` times it and weighs it, `targets` compares with
what we want to reach, `report` writes it down. No speed is reported while the tests that guard a case are red.
"""
