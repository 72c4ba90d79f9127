"""Safe reinforcement learning: carts on three planets."""
