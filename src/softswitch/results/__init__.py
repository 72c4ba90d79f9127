"""What comes back: history, status, answer, diagnosis, certificate."""
