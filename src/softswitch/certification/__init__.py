"""Certificates on new data and lower bounds on the best possible objective."""
