"""Federated safe reinforcement learning: one policy for carts on several planets, each with a budget for cost."""

from softswitch.tasks.safe_rl.task import cartpole

__all__ = ["cartpole"]
