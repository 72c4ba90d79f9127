"""A certificate: what held-out rows say of every client, as a table and as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.markup import escape
from rich.table import Table

from softswitch.support.text import as_text


class Verdict(StrEnum):
    """What the held-out rows say of a client or of all."""

    MEETS = "meets"
    """All of its constraints are within the tolerance, with the confidence asked for."""
    UNCLEAR = "cannot tell"
    """There are rows, but too few."""
    UNKNOWN = "unknown"
    """There is no row that tells anything of it."""
    VIOLATES = "violates"
    """One of its constraints is above the tolerance, with the confidence asked for."""


@dataclass(frozen=True)
class Interval:
    """A mean and where the truth lies.

    Attributes:
        estimate: on the held-out rows.
        lower: the truth is at least this,
        upper: and at most this, together with all other intervals of the certificate.
        rows: how many rows it rests on.
        deviation: the standard deviation of one row.
        approximate: whether it is a normal approximation instead of a promise.
    """

    estimate: float
    lower: float
    upper: float
    rows: int
    deviation: float
    approximate: bool


@dataclass(frozen=True)
class ClientCertificate:
    """What is known of one client.

    Attributes:
        client: its label.
        objective: f_i.
        constraints: g_i, one interval a constraint.
        verdict: on its constraints.
        rows_needed: where it cannot be told: how many more rows would probably decide, counting those that the
            constraint concerns; None where the rows at hand do not say.
    """

    client: Any
    objective: Interval
    constraints: tuple[Interval, ...]
    verdict: Verdict
    rows_needed: int | None = None


@dataclass(frozen=True)
class Certificate:
    """Which clients meet the tolerance, with what certainty.

    Attributes:
        tolerance: what g_i may be at most.
        confidence: the probability with which all statements hold together.
        clients: one certificate a client, also of those of whom nothing is known.
    """

    tolerance: float
    confidence: float
    clients: tuple[ClientCertificate, ...]

    @property
    def verdict(self) -> Verdict:
        """On all clients: "meets" if every one meets, "violates" if any violates, "unknown" if of any nothing is."""
        verdicts = {client.verdict for client in self.clients}
        for verdict in (Verdict.VIOLATES, Verdict.UNKNOWN, Verdict.UNCLEAR):
            if verdict in verdicts:
                return verdict
        return Verdict.MEETS

    @property
    def approximate(self) -> bool:
        """Whether any interval is a normal approximation instead of a promise."""
        return any(i.approximate for client in self.clients for i in (client.objective, *client.constraints))

    @property
    def worst_objective(self) -> float:
        """An upper bound on F, the worst client's objective."""
        return _largest(client.objective.upper for client in self.clients)

    @property
    def worst_constraint(self) -> float:
        """An upper bound on G, the largest constraint of any client."""
        return _largest(interval.upper for client in self.clients for interval in client.constraints)

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain numbers and words, for JSON: what is not finite is None."""
        plain = {
            "verdict": str(self.verdict),
            "approximate": self.approximate,
            "worst_objective": self.worst_objective,
            "worst_constraint": self.worst_constraint,
            **asdict(self),
        }
        finite: dict[str, Any] = _finite_only(plain)
        return finite

    def table(self) -> Table:
        """The certificate as a table for the terminal, the largest upper bound first."""
        title = f"Constraint <= {self.tolerance:g} with confidence {self.confidence:g}: {self.verdict}"
        table = Table("client", "rows", "objective at most", "constraint", "constraint at most", "verdict", title=title)
        if self.approximate:
            table.caption = "Approximate bounds: no range of the losses is known, or they are not means over rows."
        for client in sorted(self.clients, key=lambda c: -max(i.upper for i in c.constraints)):
            worst = max(client.constraints, key=lambda interval: interval.upper)
            more = f" ({client.rows_needed:,} more rows)" if client.rows_needed else ""
            table.add_row(
                escape(str(client.client)),
                f"{worst.rows:,}",
                f"{client.objective.upper:.4g}",
                f"{worst.estimate:.4g}",
                f"{worst.upper:.4g}",
                f"{client.verdict}{more}",
            )
        return table

    def __str__(self) -> str:
        return as_text(self.table(), width=110)


def _largest(bounds: Iterable[float]) -> float:
    """The largest bound; a client of which nothing is known may be anywhere."""
    return max(math.inf if math.isnan(bound) else bound for bound in bounds)


def _finite_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite_only(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_only(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
