"""Experiments with softswitch: the paper's figures, the leaderboard and safe reinforcement learning."""
