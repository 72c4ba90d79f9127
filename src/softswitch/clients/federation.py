"""Clients of any kind with a start: what a run needs beside a rule and its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softswitch.clients.oracle import Oracle
from softswitch.problem.domains import Domain, check_domain
from softswitch.problem.parameters import Params, checked_start


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients that answer as an ``Oracle``, for ``solve_federation`` and ``sweep_federation``.

    ``solve`` makes one of a problem and data. Make one yourself where clients are not rows and gradients: simulated
    robots with a policy, say (``softswitch.tasks.safe_rl``).

    Attributes:
        oracle: the clients.
        start: w_0, a pytree of floating arrays.
        names: the clients' labels.
        domain: Θ to project onto after every server step: ``Ball``, ``Box``, anything with a ``project``, or None.
    """

    oracle: Oracle
    start: Params
    names: tuple[Any, ...]
    domain: Domain | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.oracle, Oracle):
            raise TypeError(f"oracle must be a subclass of softswitch.clients.oracle.Oracle, but is {self.oracle!r}")
        object.__setattr__(self, "start", checked_start("start", self.start))
        check_domain(self.domain, self.start)
        object.__setattr__(self, "names", tuple(self.names))
        if len(self.names) != self.oracle.client_count:
            raise ValueError(
                f"names must have one label for each of {self.oracle.client_count} clients, but has {len(self.names)}"
            )
