"""What looks wrong with a run, and what to change."""
