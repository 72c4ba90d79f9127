"""Runs of PyTorch modules in one process."""
