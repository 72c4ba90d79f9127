"""Record-level differential privacy: clipping, noise, accounting and budgets."""
