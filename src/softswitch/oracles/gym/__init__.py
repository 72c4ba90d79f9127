"""Safe reinforcement learning with Gymnasium: each client is an environment with a cost, and all share one policy.

Needs Gymnasium: ``pip install 'softswitch[rl]'``.
"""

from softswitch.oracles.gym.actions import Categorical, Gaussian
from softswitch.oracles.gym.networks import NumpyNetwork
from softswitch.oracles.gym.task import make_gym_federation, pendulums

__all__ = ["Categorical", "Gaussian", "NumpyNetwork", "make_gym_federation", "pendulums"]
