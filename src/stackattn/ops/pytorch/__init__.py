"""The charts in plain PyTorch, for any device."""
