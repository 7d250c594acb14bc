"""stackattn: stack attention for PyTorch."""
