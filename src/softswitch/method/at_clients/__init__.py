"""What clients keep from round to round, where a method asks them to: as many numbers a client as parameters."""

from softswitch.method.at_clients.compression import Compression, check_compression
from softswitch.method.at_clients.consensus import Consensus
from softswitch.method.at_clients.control_variates import ControlVariates
from softswitch.method.at_clients.kept import AtClients, RoundAtClients, check_size

__all__ = [
    "AtClients",
    "Compression",
    "Consensus",
    "ControlVariates",
    "RoundAtClients",
    "check_compression",
    "check_size",
]
