"""The `torch` backend: the stacks in plain PyTorch, for any device.

- operators.py: attention weights of whole sequences, and their gradients
- chart.py: the chart of whole sequences
- columns.py: the chart one column at a time, for states
- vectors.py: readings of the superposition stack without its attention weights
- window.py: the nondeterministic stack with a window, forward and backward
- band.py: charts and rows of the nondeterministic stack with a window
- steps.py: transition weights of a chart's steps, and their gradients
- extended.py: numbers with a separate exponent, which neither overflow nor underflow
- log_chart.py: the chart in log space, for sampling and the best run
"""
