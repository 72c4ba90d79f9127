"""What clients compute: reports, updates and evaluation."""
