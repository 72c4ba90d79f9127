"""What the server makes of the clients' weighted direction before its optimiser takes it. One file a way."""

from softswitch.method.directions.branches import Branches, Direction
from softswitch.method.directions.momentum import Momentum
from softswitch.method.directions.optimistic import Optimistic
from softswitch.method.directions.spider import Spider
from softswitch.method.directions.storm import Storm

__all__ = ["Branches", "Direction", "Momentum", "Optimistic", "Spider", "Storm"]
