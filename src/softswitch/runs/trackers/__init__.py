"""Callbacks that write a run's numbers down. Their public names are in ``softswitch.trackers``."""
