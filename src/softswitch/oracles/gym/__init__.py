"""Safe reinforcement learning with Gymnasium environments as clients (``pip install 'softswitch[rl]'``)."""

from softswitch.oracles.gym.oracle import make_gym_federation
from softswitch.oracles.gym.policy import Categorical, Gaussian, NumpyNetwork

__all__ = ["Categorical", "Gaussian", "NumpyNetwork", "make_gym_federation"]
