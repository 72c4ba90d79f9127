"""Clients whose rows lie outside of memory: read as they are drawn, ahead of the rounds that need them."""
