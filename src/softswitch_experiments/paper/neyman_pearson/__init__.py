"""Neyman-Pearson classification on the breast cancer data."""
