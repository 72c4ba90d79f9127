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
    from softswitch.flower.local_client import NumpyClient as NumpyClient
    from softswitch.flower.local_client import PerRowOracle as PerRowOracle
    from softswitch.flower.local_client import RefusalError as RefusalError
    from softswitch.flower.local_client import SecondOrderClient as SecondOrderClient
    from softswitch.flower.local_client import Task as Task
    from softswitch.flower.messages import LocalDerivatives as LocalDerivatives
    from softswitch.flower.messages import Values as Values
    from softswitch.flower.private_client import PrivateClient as PrivateClient
    from softswitch.flower.secure_aggregation import SecureAggregation as SecureAggregation
    from softswitch.flower.secure_aggregation import SigningKeys as SigningKeys
    from softswitch.flower.settings import StrategySettings as StrategySettings
    from softswitch.flower.simulation import InProcessGrid as InProcessGrid
    from softswitch.flower.strategy import SwitchingStrategy as SwitchingStrategy
    from softswitch.flower.strategy import server_app as server_app
    from softswitch.flower.torch_client import TorchClient as TorchClient
    from softswitch.oracles.torch_functions import parameters as parameters
    from softswitch.results.events import read_events as read_events

__all__, __getattr__, __dir__ = lazy_attributes(__name__)
