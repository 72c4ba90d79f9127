"""Directions summed without the server seeing any of them; see ``SecureAggregation``."""
