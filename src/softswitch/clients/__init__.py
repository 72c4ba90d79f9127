"""Whose data, and what a client can do: rows, splits, draws, losses, the oracle, evaluation."""
