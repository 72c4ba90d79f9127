"""The same round across real machines: softswitch over Flower (``pip install 'softswitch[flower]'``)."""

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError("softswitch.flower needs Flower: pip install 'softswitch[flower]'") from error

from softswitch.flower.client import client_app
from softswitch.flower.in_process import InProcessGrid
from softswitch.flower.jax_client import JaxClient
from softswitch.flower.local import LocalOracle, Refused, Task
from softswitch.flower.numpy_client import NumpyClient
from softswitch.flower.server import server_app
from softswitch.flower.strategy import SwitchingStrategy
from softswitch.flower.wire import Values

__all__ = [
    "InProcessGrid",
    "JaxClient",
    "LocalOracle",
    "NumpyClient",
    "Refused",
    "SwitchingStrategy",
    "Task",
    "Values",
    "client_app",
    "server_app",
]
