"""Problem statements: objective, constraint, start and domain, with ready-made losses and constraints."""
