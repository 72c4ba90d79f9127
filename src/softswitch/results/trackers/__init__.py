"""Callbacks that write the numbers of a run to other systems."""
