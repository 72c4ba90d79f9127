"""The problem: objective, constraint, start, domain, and ready-made losses and constraints."""
