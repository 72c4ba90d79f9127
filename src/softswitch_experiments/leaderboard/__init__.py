"""The leaderboard: every method on the same tasks with the same tuning budget."""
