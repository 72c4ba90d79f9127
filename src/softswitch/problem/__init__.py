"""What a user states: objective, constraint, start, domain."""
