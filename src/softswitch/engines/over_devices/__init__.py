"""The compiled engine over many devices."""
