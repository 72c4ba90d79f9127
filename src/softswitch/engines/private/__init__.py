"""Runs whose clients keep their rows private."""
