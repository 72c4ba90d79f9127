"""The same round across real machines: softswitch over Flower (``pip install 'softswitch[flower]'``).

The names are imported when they are first used: a client's process starts for every message.
"""

from typing import TYPE_CHECKING

from softswitch.support.startup import lazy_attributes

if TYPE_CHECKING:
    from softswitch.flower.client import ClientPolicy as ClientPolicy
    from softswitch.flower.client import client_app as client_app
    from softswitch.flower.jax_client import JaxClient as JaxClient
    from softswitch.flower.jax_client import initial_arrays as initial_arrays
    from softswitch.flower.local_client import LocalOracle as LocalOracle
    from softswitch.flower.local_client import PerRowOracle as PerRowOracle
    from softswitch.flower.local_client import RefusalError as RefusalError
    from softswitch.flower.local_client import RegretClient as RegretClient
    from softswitch.flower.local_client import Task as Task
    from softswitch.flower.membership import AllowedClient as AllowedClient
    from softswitch.flower.messages import Values as Values
    from softswitch.flower.numpy_client import NumpyClient as NumpyClient
    from softswitch.flower.private_client import PrivateClient as PrivateClient
    from softswitch.flower.secure_aggregation import SecureAggregation as SecureAggregation
    from softswitch.flower.secure_aggregation import SigningKeys as SigningKeys
    from softswitch.flower.server import server_app as server_app
    from softswitch.flower.settings import StrategySettings as StrategySettings
    from softswitch.flower.simulation import InProcessGrid as InProcessGrid
    from softswitch.flower.strategy import SwitchingStrategy as SwitchingStrategy
    from softswitch.flower.torch_client import TorchClient as TorchClient
    from softswitch.oracles.torch_functions import parameters as parameters
    from softswitch.results.events import read_events as read_events

_MODULES = {
    "ClientPolicy": "flower.client",
    "InProcessGrid": "flower.simulation",
    "JaxClient": "flower.jax_client",
    "AllowedClient": "flower.membership",
    "LocalOracle": "flower.local_client",
    "NumpyClient": "flower.numpy_client",
    "PrivateClient": "flower.private_client",
    "RefusalError": "flower.local_client",
    "SecureAggregation": "flower.secure_aggregation",
    "SigningKeys": "flower.secure_aggregation",
    "RegretClient": "flower.local_client",
    "PerRowOracle": "flower.local_client",
    "StrategySettings": "flower.settings",
    "SwitchingStrategy": "flower.strategy",
    "Task": "flower.local_client",
    "TorchClient": "flower.torch_client",
    "Values": "flower.messages",
    "client_app": "flower.client",
    "initial_arrays": "flower.jax_client",
    "parameters": "oracles.torch_functions",
    "read_events": "results.events",
    "server_app": "flower.server",
}
"""Where each name lives."""

__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_attributes(__name__, _MODULES)
