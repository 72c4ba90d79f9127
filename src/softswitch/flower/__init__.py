"""The same round across real machines: softswitch over Flower (``pip install 'softswitch[flower]'``).

As everywhere, names are imported when they are first used: a client's process starts anew for every message.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from softswitch.first_use import on_first_use

if find_spec("flwr") is None:
    raise ImportError("softswitch.flower needs Flower: pip install 'softswitch[flower]'")

if TYPE_CHECKING:
    from softswitch.flower.client import client_app as client_app
    from softswitch.flower.in_process import InProcessGrid as InProcessGrid
    from softswitch.flower.jax_client import JaxClient as JaxClient
    from softswitch.flower.local import LocalOracle as LocalOracle
    from softswitch.flower.local import Refused as Refused
    from softswitch.flower.local import Task as Task
    from softswitch.flower.numpy_client import NumpyClient as NumpyClient
    from softswitch.flower.server import server_app as server_app
    from softswitch.flower.strategy import SwitchingStrategy as SwitchingStrategy
    from softswitch.flower.torch_client import TorchClient as TorchClient
    from softswitch.flower.torch_client import parameters as parameters
    from softswitch.flower.trees import initial_arrays as initial_arrays
    from softswitch.flower.wire import Values as Values

_ROOMS = {
    "InProcessGrid": "in_process",
    "JaxClient": "jax_client",
    "LocalOracle": "local",
    "NumpyClient": "numpy_client",
    "Refused": "local",
    "SwitchingStrategy": "strategy",
    "Task": "local",
    "TorchClient": "torch_client",
    "Values": "wire",
    "client_app": "client",
    "initial_arrays": "trees",
    "parameters": "torch_client",
    "server_app": "server",
}
"""Where each public name lives."""

__all__ = list(_ROOMS)
__getattr__, __dir__ = on_first_use(__name__, _ROOMS)
