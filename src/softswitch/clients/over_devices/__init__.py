"""Clients divided over many devices: who goes where, what each device draws, and an oracle that asks all of them."""
