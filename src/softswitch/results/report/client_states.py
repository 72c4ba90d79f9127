"""How every client of a run stands: violating, undecided or meeting, by the certificate where there is one."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from softswitch.results.folder import Run


class ClientVerdict(StrEnum):
    """How a client stands; in the order in which a reader wants to know."""

    VIOLATES = "violates"
    UNDECIDED = "undecided"
    MEETS = "meets"


MARKS = {ClientVerdict.VIOLATES: "✘", ClientVerdict.UNDECIDED: "?", ClientVerdict.MEETS: "✔"}
"""Said beside the colour, for those who do not see it."""


class ClientStanding(NamedTuple):
    """One client.

    Attributes:
        name: its label.
        standing: how it stands,
        words: and why, or what would help; may be empty.
        constraint: its largest constraint on its training rows.
        estimate: its worst constraint on held-out rows,
        lower: and where the truth lies, by the certificate; NaN without one.
        upper: likewise.
        more_rows: how many rows more would probably decide; None where that is not known or not needed.
    """

    name: str
    standing: ClientVerdict
    words: str
    constraint: float
    estimate: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    more_rows: int | None = None

    @property
    def marked(self) -> str:
        """How it stands, with a sign."""
        return f"{MARKS[self.standing]} {self.standing}"


def standings(run: Run) -> list[ClientStanding]:
    """Every client, in the order of the run's table."""
    tolerance, certified = run.about["tolerance"], certified_clients(run)
    names, worst = client_constraints(run)
    found = []
    for name, constraint in zip(names, worst.tolist(), strict=True):
        told = certified.get(name)
        if told is not None:
            found.append(_by_certificate(name, constraint, told))
        elif certified:
            found.append(ClientStanding(name, ClientVerdict.UNDECIDED, "no held-out rows", constraint))
        elif constraint <= tolerance:
            found.append(ClientStanding(name, ClientVerdict.MEETS, "on training rows", constraint))
        else:
            found.append(ClientStanding(name, ClientVerdict.VIOLATES, "on training rows", constraint))
    return found


def worst_first(found: list[ClientStanding]) -> list[int]:
    """The clients' places: violating ones first, then undecided, then meeting; the largest constraint first."""
    ranks = {standing: rank for rank, standing in enumerate(ClientVerdict)}

    def key(i: int) -> tuple[float, ...]:
        one = found[i]
        levels = (one.estimate, one.upper, one.constraint)
        return (ranks[one.standing], *(math.inf if math.isnan(level) else -level for level in levels))

    return sorted(range(len(found)), key=key)


def client_constraints(run: Run) -> tuple[list[str], np.ndarray]:
    """The clients' names, and the largest constraint of each on its training rows."""
    table = run.clients
    columns = [values for name, values in table.items() if name.startswith("constraint")]
    return table["client"], np.max(np.array(columns, dtype=float), axis=0)


def certified_clients(run: Run) -> dict[str, dict[str, Any]]:
    """What the certificate tells, by client; empty without one."""
    return {str(one["client"]): one for one in (run.certificate or {}).get("clients", [])}


def _by_certificate(name: str, constraint: float, told: dict[str, Any]) -> ClientStanding:
    bounds = [
        tuple(math.nan if interval[side] is None else interval[side] for side in ("estimate", "lower", "upper"))
        for interval in told["constraints"]
    ]
    estimate, lower, upper = max(bounds, key=lambda bound: math.inf if math.isnan(bound[2]) else bound[2])
    more = told.get("rows_needed")
    standing = {"meets": ClientVerdict.MEETS, "violates": ClientVerdict.VIOLATES}.get(
        told["verdict"], ClientVerdict.UNDECIDED
    )
    words = ""
    if told["verdict"] == "unknown":
        words = "no held-out rows that tell"
    elif standing is ClientVerdict.UNDECIDED and more:
        words = f"about {more:,} rows more"
    elif standing is ClientVerdict.UNDECIDED and more == 0:
        words = "waits for others"
    return ClientStanding(name, standing, words, constraint, estimate, lower, upper, more)
