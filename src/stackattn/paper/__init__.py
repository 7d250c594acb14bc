"""What exists only because of the paper."""
