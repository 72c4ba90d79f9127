"""Fair classification: Adult with parity constraints."""
