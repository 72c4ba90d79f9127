"""One script a peer: the same constrained problem to its solution. Each runs under the Python of its environment."""
