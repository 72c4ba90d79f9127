"""Safe reinforcement learning with Gymnasium (``pip install 'softswitch[rl]'``): each client is an environment."""

from softswitch.oracles.gym.oracle import make_gym_federation
from softswitch.oracles.gym.policy import Categorical, Gaussian, NumpyNetwork

__all__ = ["Categorical", "Gaussian", "NumpyNetwork", "make_gym_federation"]
