"""What rows are promised: how much anything that left a client can tell of any single row of it."""
