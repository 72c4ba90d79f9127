"""Oracles: the computations of clients, which are reports, updates and evaluations."""
