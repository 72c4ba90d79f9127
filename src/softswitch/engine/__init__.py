"""Engines that run rounds in one process, and the functions that use them: solve, sweep, frontier and others."""
