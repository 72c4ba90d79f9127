"""Compressed directions and changes of parameters over Flower, in bytes; see ``Compression``."""
