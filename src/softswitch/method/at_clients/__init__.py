"""What clients keep from round to round, where a method asks them to: as many numbers a client as parameters."""

from softswitch.method.at_clients.base import Asked, AtClients, check_size
from softswitch.method.at_clients.compression import Compression, check_compression
from softswitch.method.at_clients.consensus import Consensus
from softswitch.method.at_clients.control_variates import ControlVariates

__all__ = ["Asked", "AtClients", "Compression", "Consensus", "ControlVariates", "check_compression", "check_size"]
