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
            many must work together with a server that keeps to the protocol to see another's direction. Where clients
            sign their keys more must be there: see ``shares``.
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

    def shares(self, clients: int, *, signed: bool = False) -> int:
        """How many of these clients must be there to take the masks off.

        Args:
            clients: how many are summed.
            signed: whether they sign their keys: then also a server that lies about who arrived is to see no sum of
                fewer than ``least_clients``.
        """
        enough = int(self.threshold * clients) + 1
        return min(clients, max(enough, shares_against_lies(clients, self.least_clients)) if signed else enough)


def shares_against_lies(clients: int, least: int) -> int:
    """How many of n clients must share a mask, t, such that lies about who arrived show no sum of fewer than s.

    A server may say to each client something else. To see the sum over a set S it needs, of each i in S, t shares of
    its own mask, and the masks that i has in common with those outside: each told by i, where i was told that the other
    is lost, or by the other. Whoever tells its share of i's mask does not tell the common one: so i must have told it,
    and i tells at most n − t, those lost by what it was told. With all of S that is n − t + |S| shares at most; they
    are fewer than t where |S| < 2t − n. So t = (n + s)/2, rounded up, is enough.

    Args:
        clients: n.
        least: s.
    """
    return (clients + least + 1) // 2


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
