"""Federated safe reinforcement learning: one policy for carts on several planets, each with a budget for cost.

Where Gymnasium is there, importing this registers ``softswitch/ConstrainedCartPole-v0``.
"""

from importlib.util import find_spec

from softswitch_experiments.tasks.safe_rl import policy_file, policy_training
from softswitch_experiments.tasks.safe_rl.cartpole import PLANETS
from softswitch_experiments.tasks.safe_rl.task import cartpole

__all__ = ["PLANETS", "cartpole", "policy_file", "policy_training"]

if find_spec("gymnasium") is not None:
    import gymnasium

    gymnasium.register(
        "softswitch/ConstrainedCartPole-v0",
        entry_point="softswitch_experiments.tasks.safe_rl.environment:ConstrainedCartPole",
        max_episode_steps=200,
    )
