"""What the server makes of the clients' weighted direction before its optimiser takes it. One file a way."""

from softswitch.method.directions.branches import Branches, Direction
from softswitch.method.directions.optimistic import Optimistic
from softswitch.method.directions.spider import Spider

__all__ = ["Branches", "Direction", "Optimistic", "Spider"]
