"""Clients that compute with PyTorch: rows as data sets, functions of a module, and all of them as one oracle."""
