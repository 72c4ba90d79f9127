"""Rounds whose rows are read just before them."""
