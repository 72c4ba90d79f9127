"""Five hospitals and one model."""
