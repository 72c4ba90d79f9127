"""Clients over the network that keep their rows private, by settings and a budget of their own."""
