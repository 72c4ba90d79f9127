"""The same round across real machines: softswitch over Flower (``pip install 'softswitch[flower]'``).

The names are imported when they are first used: a client's process starts anew for every message.
"""

from typing import TYPE_CHECKING

from softswitch.support.lazy import on_first_use

if TYPE_CHECKING:
    from softswitch.clients.torch_modules.module_functions import parameters as parameters
    from softswitch.engines.flower.at_client.jax_client import JaxClient as JaxClient
    from softswitch.engines.flower.at_client.local import LocalOracle as LocalOracle
    from softswitch.engines.flower.at_client.local import Refused as Refused
    from softswitch.engines.flower.at_client.local import Task as Task
    from softswitch.engines.flower.at_client.numpy_client import NumpyClient as NumpyClient
    from softswitch.engines.flower.at_client.regret_client import RegretClient as RegretClient
    from softswitch.engines.flower.at_client.torch_client import TorchClient as TorchClient
    from softswitch.engines.flower.client_app import client_app as client_app
    from softswitch.engines.flower.flat_params import initial_arrays as initial_arrays
    from softswitch.engines.flower.in_process import InProcessGrid as InProcessGrid
    from softswitch.engines.flower.members.client_policy import ClientPolicy as ClientPolicy
    from softswitch.engines.flower.members.listed import ListedClient as ListedClient
    from softswitch.engines.flower.private.private_client import PrivateClient as PrivateClient
    from softswitch.engines.flower.private.private_client import RowByRow as RowByRow
    from softswitch.engines.flower.secure.secure_settings import SecureAggregation as SecureAggregation
    from softswitch.engines.flower.secure.signed_keys import SignedKeys as SignedKeys
    from softswitch.engines.flower.server_app import server_app as server_app
    from softswitch.engines.flower.strategy import SwitchingStrategy as SwitchingStrategy
    from softswitch.engines.flower.strategy_settings import StrategySettings as StrategySettings
    from softswitch.engines.flower.wire import Values as Values
    from softswitch.runs.events import read_events as read_events

_PLACES = {
    "ClientPolicy": "engines.flower.members.client_policy",
    "InProcessGrid": "engines.flower.in_process",
    "JaxClient": "engines.flower.at_client.jax_client",
    "ListedClient": "engines.flower.members.listed",
    "LocalOracle": "engines.flower.at_client.local",
    "NumpyClient": "engines.flower.at_client.numpy_client",
    "PrivateClient": "engines.flower.private.private_client",
    "Refused": "engines.flower.at_client.local",
    "SecureAggregation": "engines.flower.secure.secure_settings",
    "SignedKeys": "engines.flower.secure.signed_keys",
    "RegretClient": "engines.flower.at_client.regret_client",
    "RowByRow": "engines.flower.private.private_client",
    "StrategySettings": "engines.flower.strategy_settings",
    "SwitchingStrategy": "engines.flower.strategy",
    "Task": "engines.flower.at_client.local",
    "TorchClient": "engines.flower.at_client.torch_client",
    "Values": "engines.flower.wire",
    "client_app": "engines.flower.client_app",
    "initial_arrays": "engines.flower.flat_params",
    "parameters": "clients.torch_modules.module_functions",
    "read_events": "runs.events",
    "server_app": "engines.flower.server_app",
}
"""Where each name lives."""

__all__ = list(_PLACES)
__getattr__, __dir__ = on_first_use(__name__, _PLACES)
