"""A certificate: what held-out rows say of every client, as a table and as plain numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from softswitch.support.text import as_text, few_of, number

MOST_LINES, FEW_LINES = 50, 20
"""The table of more clients than this shows so many of the worst."""
UNBROKEN = 24
"""Clients' names up to this length are not broken."""


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


class IntervalMethod(StrEnum):
    """How an interval was made."""

    BINOMIAL = "binomial"
    """Exact limits of a rate: every row counts or does not."""
    BETTING = "betting"
    """Of a mean of values in a known range."""
    GAP = "gap"
    """Of the difference of two groups' means."""
    NORMAL = "normal"
    """An approximation."""
    NOISED = "with noise"
    """Of a sum that was told with noise, which the limits include."""


@dataclass(frozen=True)
class Interval:
    """A function's value at a client, and where the truth lies.

    Each side is a statement of its own: with the certificate's confidence all clients' upper limits of a function hold
    together, and so do all their lower limits. Both sides together have twice the error probability.

    Attributes:
        estimate: on the held-out rows.
        lower: the truth is at least this,
        upper: and at most this; together with the same limits of all other clients.
        rows: how many rows it rests on.
        deviation: the standard deviation of one row.
        approximate: whether it is a normal approximation instead of a promise.
        marginal_upper: upper limit that holds for this client alone.
        meets_at: a p-value: the smallest error probability at which the truth is said to be within the tolerance,
        violates_at: and at which it is said to be above.
        method: how it was made.
    """

    estimate: float
    lower: float
    upper: float
    rows: int
    deviation: float
    approximate: bool
    marginal_upper: float = math.nan
    meets_at: float = 1.0
    violates_at: float = 1.0
    method: IntervalMethod = IntervalMethod.NORMAL


@dataclass(frozen=True)
class ClientCertificate:
    """What is known of one client.

    Attributes:
        client: its label.
        objective: f_i.
        constraints: g_i, one interval a constraint.
        verdict: on its constraints.
        rows_needed: where it cannot be told: how many more rows would probably decide, counting those that the
            constraint concerns; 0 where its own are enough, once the others' are; None where the rows at hand do not
            say.
    """

    client: Any
    objective: Interval
    constraints: tuple[Interval, ...]
    verdict: Verdict
    rows_needed: int | None = None


@dataclass(frozen=True)
class Certificate:
    """Which clients meet the tolerance, with what certainty.

    Each of these holds with a probability of at least the confidence, however many clients there are:

    - no client is said to meet that does not; so if all are said to meet, all do,
    - no client is said to violate that meets,
    - the worst client's constraint is at most ``worst_constraint``; likewise its objective,
    - every client's constraint is at most its own limit (``upper``); likewise every objective, and every lower limit.

    Each by itself: two of them together have twice the error probability.

    Attributes:
        tolerance: what g_i may be at most.
        confidence: the probability with which each kind of statement is true of all clients.
        clients: one certificate a client, also of those of whom nothing is known.
        tests: how many models were tested on these rows in a fixed order, this one the last that passed.
        epsilon: ε that it cost each client's held-out rows, where these are kept private; else None,
        delta: and δ.
    """

    tolerance: float
    confidence: float
    clients: tuple[ClientCertificate, ...]
    tests: int = 1
    epsilon: float | None = None
    delta: float | None = None

    def after_tests(self, tests: int) -> Certificate:
        """The certificate of the last of several models that passed, tested one after the other on the same rows.

        What is promised of it is that all clients are within the tolerance, for that was tested. Limits of its own
        would be of the one that was picked, and are not told: every client's is the tolerance.

        Args:
            tests: how many models were tested, this one the last that passed.
        """
        if tests == 1 or self.verdict is not Verdict.MEETS:
            return self

        def tested(interval: Interval) -> Interval:
            return replace(interval, lower=-math.inf, upper=self.tolerance, marginal_upper=self.tolerance)

        clients = tuple(
            replace(
                client,
                objective=replace(client.objective, approximate=True),
                constraints=tuple(map(tested, client.constraints)),
            )
            for client in self.clients
        )
        return replace(self, clients=clients, tests=tests)

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
        """Whether any constraint's interval is a normal approximation instead of a promise."""
        return any(interval.approximate for client in self.clients for interval in client.constraints)

    @property
    def approximate_objective(self) -> bool:
        """Whether any objective's interval is one."""
        return any(client.objective.approximate for client in self.clients)

    @property
    def worst_objective(self) -> float:
        """An upper bound on F, the worst client's objective.

        It is the largest of the limits that are said of clients alone: for F to be above, that of the worst client
        would have to be wrong. So it is smaller than the largest of those that hold of all clients.
        """
        return _largest(_alone(client.objective) for client in self.clients)

    @property
    def worst_constraint(self) -> float:
        """An upper bound on G, the largest constraint of any client; within the tolerance where all clients meet."""
        return _largest(_alone(interval) for client in self.clients for interval in client.constraints)

    def to_dict(self) -> dict[str, Any]:
        """The certificate as plain numbers and words, for JSON: what is not finite is None."""
        plain = {
            "verdict": str(self.verdict),
            "approximate": self.approximate,
            "approximate_objective": self.approximate_objective,
            "worst_objective": self.worst_objective,
            "worst_constraint": self.worst_constraint,
            **asdict(self),
        }
        finite: dict[str, Any] = _finite_only(plain)
        return finite

    def table(self) -> Table:
        """The certificate as a table for the terminal: violating clients first, then undecided; of very many a few."""
        title = f"Constraint <= {self.tolerance:g} with confidence {self.confidence:g}: {self.verdict}"
        table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        ordered = sorted(self.clients, key=_worst_first)
        shown = ordered if len(ordered) <= MOST_LINES else ordered[:FEW_LINES]
        names = [escape(str(client.client)) for client in shown]
        table.add_column("client", overflow="fold", no_wrap=max(map(len, names), default=0) <= UNBROKEN)
        for name in ("rows", "objective\nat most", "constraint", "constraint\nat most", "verdict"):
            table.add_column(name, overflow="fold")
        table.caption = "\n".join([*self._left_out(len(ordered) - len(shown)), *self.notes])
        for client, label in zip(shown, names, strict=True):
            worst = max(client.constraints, key=lambda interval: interval.upper)
            more = "" if client.rows_needed is None else f" ({client.rows_needed:,} more rows)"
            if client.rows_needed == 0:
                more = " (waits for others)"
            table.add_row(
                label,
                f"{worst.rows:,}",
                _limit(client.objective),
                number(worst.estimate),
                _limit(worst),
                f"{client.verdict}{more}",
            )
        return table

    def _left_out(self, many: int) -> list[str]:
        """How many clients the table does not show, and how all of them stand."""
        if not many:
            return []
        counts = Counter(client.verdict for client in self.clients)
        told = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in Verdict if counts[verdict])
        return [f"The worst {len(self.clients) - many} of {len(self.clients):,} clients. Of all: {told}."]

    @property
    def notes(self) -> list[str]:
        """What a reader of the table should know."""
        known = {"constraint": self.worst_constraint, "objective": self.worst_objective}
        most = [f"the worst client's {what} is at most {number(v)}" for what, v in known.items() if math.isfinite(v)]
        said = []
        if most:
            limits = "The table's limits hold of all clients at once, and are wider."
            said = [f"{' and '.join(most).capitalize()}. {limits}"]
        beyond = (max(i.upper for i in c.constraints) for c in self.clients if c.verdict is Verdict.MEETS)
        if any(upper > self.tolerance for upper in beyond):
            said.append("A client may meet although that limit is above the bound: fewer statements, smaller limits.")
        if self.tests > 1:
            said.append(
                f"{self.tests} models were tested on these rows in a fixed order, and this is the last that passed: "
                "its limit is what was tested, the bound."
            )
        if self.epsilon is not None:
            said.append(
                "Of held-out rows only sums with noise were used, which the limits include: every row is "
                f"(ε, δ)-private with ε = {number(self.epsilon)}, δ = {self.delta:.2g}."
            )
            if self.approximate_objective:
                said.append("The objective has no known range, and is left out.")
        elif self.approximate or self.approximate_objective:
            said.append("≈ Approximate bounds: no range of the losses is known, or they are not means over rows.")
        return said

    def __str__(self) -> str:
        return as_text(self.table(), width=80)


def _worst_first(client: ClientCertificate) -> tuple[float, ...]:
    """Violating clients first, then those that are undecided; the largest constraint first."""
    rank = {Verdict.VIOLATES: 0, Verdict.UNCLEAR: 1, Verdict.UNKNOWN: 1, Verdict.MEETS: 2}[client.verdict]
    worst = max(client.constraints, key=lambda interval: interval.upper)
    return (rank, *(math.inf if math.isnan(level) else -level for level in (worst.estimate, worst.upper)))


def _limit(interval: Interval) -> str:
    """What the truth is at most, marked where that is an approximation."""
    return f"{'≈ ' if interval.approximate and math.isfinite(interval.upper) else ''}{number(interval.upper)}"


def _alone(interval: Interval) -> float:
    return interval.upper if math.isnan(interval.marginal_upper) else interval.marginal_upper


def _largest(bounds: Iterable[float]) -> float:
    """The largest bound; a client of which nothing is known may be anywhere."""
    return max(math.inf if math.isnan(bound) else bound for bound in bounds)


def _finite_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite_only(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_only(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


NOT_CERTIFIED = "no answer at this confidence"
"""The verdict on a model that was to be certified, and is not."""


def is_certified(certificate: Certificate | None) -> bool:
    """Whether every client is certified."""
    return certificate is not None and certificate.verdict is Verdict.MEETS


def ending(certificate: Certificate | None) -> str:
    """What came of it; None: of a run that was stopped or diverged."""
    if certificate is None:
        return "Nothing was certified: training did not come to its end."
    many, sure = len(certificate.clients), f"{certificate.confidence:.4g}"
    bound = f"at most {certificate.tolerance:g}"
    if is_certified(certificate):
        how = "approximately, since no range of the constraint is known" if certificate.approximate else "a promise"
        where = f"at each of {many} clients" if many > 1 else "at the client"
        return f"Certified: on rows that nobody has seen the constraint is {bound} {where}, confidence {sure} ({how})."
    said = [f"{NOT_CERTIFIED.capitalize()} ({sure}): it cannot be said that the constraint is {bound} at every client."]
    meeting = sum(client.verdict is Verdict.MEETS for client in certificate.clients)
    if meeting:
        said.append(f"{meeting} of {many} clients meet it.")
    in_the_way = {
        Verdict.VIOLATES: ("violates", "violate", "it"),
        Verdict.UNCLEAR: ("has", "have", "too few rows to tell"),
        Verdict.UNKNOWN: ("has", "have", "no row that tells anything"),
    }
    for verdict, words in in_the_way.items():
        named = [_named(client) for client in certificate.clients if client.verdict is verdict]
        if named:
            one, several, what = words
            said.append(f"{len(named)} {one if len(named) == 1 else several} {what}: {few_of(named)}.")
    if math.isfinite(certificate.worst_constraint):
        about = "about " if certificate.approximate else ""
        said.append(
            f"The smallest bound that this model could be certified for by these rows is {about}"
            f"{_rounded_up(certificate.worst_constraint)}."
        )
    said.append("What helps: more rows of these clients, a larger bound, or a lower confidence, settled beforehand.")
    return " ".join(said)


def warn_about_reuse(times: int) -> list[str]:
    """What to say where the same rows have certified so many models of other runs; nothing where none."""
    if not times:
        return []
    return [
        f"The same rows have certified {times} other model{'s' * (times > 1)} beside this run. What is promised is "
        "promised of one run by itself: who tries many and keeps the best needs new rows."
    ]


def _named(client: ClientCertificate) -> str:
    rows = min(interval.rows for interval in client.constraints)
    more = f", about {client.rows_needed:,} more would do" if client.rows_needed else ""
    return f"{client.client} ({rows:,} rows{more})"


def _rounded_up(value: float) -> str:
    digits = 3 - math.floor(math.log10(abs(value))) if value else 3
    return f"{math.ceil(value * 10**digits) / 10**digits:.4g}"
