"""Safe reinforcement learning on any Gymnasium environment: environments with a cost as clients, one policy for all.

Needs Gymnasium: ``pip install 'softswitch[rl]'``.
"""

from softswitch.tasks.gym_clients.actions import Categorical, Gaussian
from softswitch.tasks.gym_clients.gym_task import environment_clients
from softswitch.tasks.gym_clients.networks_by_hand import NumpyNetwork
from softswitch.tasks.gym_clients.pendulums import pendulums

__all__ = ["Categorical", "Gaussian", "NumpyNetwork", "environment_clients", "pendulums"]
