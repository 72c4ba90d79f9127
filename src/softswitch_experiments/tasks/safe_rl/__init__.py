"""Federated safe reinforcement learning: one policy for carts on several planets, each with a budget for cost.

If Gymnasium is installed, importing this package registers ``softswitch/ConstrainedCartPole-v0``.
"""

from importlib.util import find_spec

from softswitch_experiments.tasks.safe_rl.physics import PLANETS
from softswitch_experiments.tasks.safe_rl.policy import load_policy, save_policy
from softswitch_experiments.tasks.safe_rl.task import cartpole, train_policy

__all__ = ["PLANETS", "cartpole", "load_policy", "save_policy", "train_policy"]

if find_spec("gymnasium") is not None:
    import gymnasium

    gymnasium.register(
        "softswitch/ConstrainedCartPole-v0",
        entry_point="softswitch_experiments.tasks.safe_rl.environment:ConstrainedCartPole",
        max_episode_steps=200,
    )
