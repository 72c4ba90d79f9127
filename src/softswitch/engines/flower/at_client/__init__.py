"""What runs at a client: functions and rows of its own, in JAX, PyTorch or NumPy."""
