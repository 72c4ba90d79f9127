"""SecureAggregation: that the server is to see sums of directions only, and of how many clients at least."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from softswitch.support import checks

ROUNDING = 0.99
"""An effective number is compared with this tolerance: weights are rounded."""


@dataclass(frozen=True, kw_only=True)
class SecureAggregation:
    """For ``SwitchingStrategy(rule, clip_norm=…, secure=SecureAggregation())``: clients mask their directions.

    Each client multiplies its direction by its own weight, which the server tells to all, and adds masks that cancel in
    the sum. The server sees the sum only. The numbers that clients report stay visible: the switch needs them.

    A sum hides a client only among others that weigh something: so nobody weighs more than 1/``least_clients``, whoever
    would is held there, and the effective number of clients, (Σ r_i)²/Σ r_i², is at least ``least_clients``; a round in
    which it is not is void. Clients are lost from a sum, and not weighed again: it is divided by the weight that is
    left.

    Attributes:
        least_clients: the effective number of clients in a sum, at least.
        least_weight: the share of the weight that must be left where clients are lost; with less the round is void.
        threshold: the share of the clients in a round, above one half, that must be there to take the masks off. So
            many must work together with the server to see another's direction.
    """

    least_clients: int = 5
    least_weight: float = 0.5
    threshold: float = 0.5

    def __post_init__(self) -> None:
        checks.whole_number("least_clients", self.least_clients, at_least=2)
        checks.real_number("least_weight", self.least_weight, above=0, at_most=1)
        checks.real_number("threshold", self.threshold, at_least=0.5)
        if self.threshold >= 1:
            raise ValueError(f"threshold must be below 1, but is {self.threshold}")

    @property
    def most_weight(self) -> float:
        """What a client weighs, at most."""
        return 1 / self.least_clients

    def shares(self, clients: int) -> int:
        """How many of these clients must be there to take the masks off.

        Args:
            clients: how many are summed.
        """
        return min(clients, int(self.threshold * clients) + 1)


def effective_number(weights: Iterable[float]) -> float:
    """How many clients of equal weight would count as much: (Σ r_i)²/Σ r_i²; 0 where nobody weighs anything.

    Args:
        weights: of the clients.
    """
    own = [float(weight) for weight in weights]
    squares = sum(weight**2 for weight in own)
    return sum(own) ** 2 / squares if squares else 0.0


def hides_enough(weights: Iterable[float], least: float) -> bool:
    """Whether the effective number of clients is as large as it should be, but for rounding.

    Args:
        weights: of the clients.
        least: the number that it should be.
    """
    return effective_number(weights) >= ROUNDING * least
