"""Five hospitals and one network."""
