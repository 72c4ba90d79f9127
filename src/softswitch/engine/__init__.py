"""Engines that run rounds in one process, and the functions that users call."""
