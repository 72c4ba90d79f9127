"""Statements of the paper that only its experiments use, and estimates of the theorems' constants."""
