"""Neyman–Pearson classification: breast cancer with a bound on misses, and what the theorems say of it."""
