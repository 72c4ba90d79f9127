"""Certificates: confidence bounds on every client's constraint from held-out rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from softswitch.results.json_numbers import replace_non_finite
from softswitch.support.text import format_number, join_first, render_text

MAX_TABLE_ROWS, SHORT_TABLE_ROWS = 50, 20  # a table of more clients than the first number has only the worst few
MAX_UNWRAPPED_NAME = 24  # clients' names up to this length are not wrapped
NOT_CERTIFIED = "not certified"  # the outcome of a model that failed certification


class Verdict(StrEnum):
    """What the held-out rows show of a client, or of all clients, at the given confidence.

    MEETS: all constraints are within the tolerance. VIOLATES: a constraint is above it. UNDECIDED: there are too few
    rows to decide. UNKNOWN: there are no rows that concern the constraint.
    """

    MEETS = "meets"
    UNDECIDED = "undecided"
    UNKNOWN = "unknown"
    VIOLATES = "violates"


class IntervalMethod(StrEnum):
    """The method of a confidence interval.

    BINOMIAL: exact limits of a rate. BETTING: limits of a mean of values in a known range. GAP: limits of the
    difference of two groups' means. NORMAL: normal approximation. NOISED: limits of a noisy sum, including the noise.
    """

    BINOMIAL = "binomial"
    BETTING = "betting"
    GAP = "gap"
    NORMAL = "normal"
    NOISED = "with noise"


@dataclass(frozen=True)
class Interval:
    """Confidence limits of a function's value at a client.

    The upper limits of a function hold at all clients simultaneously with the certificate's confidence, and so do the
    lower limits. Both together have twice the error probability.

    Attributes:
        estimate: The value on the held-out rows.
        lower: Lower limit, simultaneous over the clients.
        upper: Upper limit, simultaneous over the clients.
        rows: Number of rows.
        deviation: Standard deviation of one row's value.
        approximate: Whether it is a normal approximation.
        marginal_upper: Upper limit for this client only.
        meets_at: p-value: the smallest error probability at which the value is within the tolerance.
        violates_at: p-value: the smallest error probability at which the value is above the tolerance.
        method: The method of the interval.
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

    @property
    def marginal_limit(self) -> float:
        """The upper limit for this client only, or the simultaneous one if there is none."""
        return self.upper if math.isnan(self.marginal_upper) else self.marginal_upper

    def __str__(self) -> str:
        return f"{'≈ ' * (self.approximate and math.isfinite(self.upper))}{format_number(self.upper)}"


@dataclass(frozen=True)
class ClientCertificate:
    """The certificate of one client.

    Attributes:
        client: Label of the client.
        objective: Interval of f_i.
        constraints: Intervals of g_i, one per constraint.
        verdict: Verdict on its constraints.
        rows_needed: If undecided, about how many more rows that concern the constraint would decide; 0 if its rows
            suffice once other clients are decided; None if unknown.
    """

    client: Any
    objective: Interval
    constraints: tuple[Interval, ...]
    verdict: Verdict
    rows_needed: int | None = None

    @property
    def worst(self) -> Interval:
        """The interval of the constraint with the largest upper limit."""
        return max(self.constraints, key=lambda interval: interval.upper)


@dataclass(frozen=True)
class Certificate:
    """Which clients meet the tolerance, at a confidence level.

    Each of these statements holds with at least this confidence, for any number of clients:

    - Every client with the verdict "meets" meets the tolerance.
    - Every client with the verdict "violates" violates it.
    - The worst client's constraint is at most ``worst_constraint``, and its objective at most ``worst_objective``.
    - Every client's constraint is at most its ``upper`` limit. The same holds for objectives and for lower limits.

    Two of these statements together have twice the error probability.

    Attributes:
        tolerance: The bound on g_i.
        confidence: The confidence of each statement.
        clients: One certificate per client, including clients without rows.
        tests: Number of models tested on these rows in a fixed order; this model is the last that passed.
        epsilon: ε spent on each client's held-out rows, if they are private; else None.
        delta: δ, if they are private; else None.
    """

    tolerance: float
    confidence: float
    clients: tuple[ClientCertificate, ...]
    tests: int = 1
    epsilon: float | None = None
    delta: float | None = None

    def after_tests(self, tests: int) -> Certificate:
        """Return the certificate of the last of several models that passed, tested in order on the same rows.

        The tests certify that all clients are within the tolerance. Tighter limits of the selected model would not be
        valid: every client's limit is the tolerance.

        Args:
            tests: Number of tested models, including this one.
        """
        if tests == 1 or self.verdict is not Verdict.MEETS:
            return self
        limits: dict[str, Any] = {"lower": -math.inf, "upper": self.tolerance, "marginal_upper": self.tolerance}
        clients = tuple(
            replace(
                client,
                objective=replace(client.objective, approximate=True),
                constraints=tuple(replace(interval, **limits) for interval in client.constraints),
            )
            for client in self.clients
        )
        return replace(self, clients=clients, tests=tests)

    @property
    def verdict(self) -> Verdict:
        """The first of "violates", "unknown" and "undecided" that any client has, or else "meets"."""
        verdicts = {client.verdict for client in self.clients}
        order = (Verdict.VIOLATES, Verdict.UNKNOWN, Verdict.UNDECIDED)
        return next((verdict for verdict in order if verdict in verdicts), Verdict.MEETS)

    @property
    def approximate(self) -> bool:
        """Whether any constraint's interval is a normal approximation."""
        return any(interval.approximate for client in self.clients for interval in client.constraints)

    @property
    def approximate_objective(self) -> bool:
        """Whether any objective's interval is a normal approximation."""
        return any(client.objective.approximate for client in self.clients)

    @property
    def worst_objective(self) -> float:
        """Upper bound on F, the worst client's objective: the largest limit for a client alone.

        It need not be simultaneous, since F exceeds it only if the limit of one client, the worst, is wrong.
        """
        return _largest(client.objective.marginal_limit for client in self.clients)

    @property
    def worst_constraint(self) -> float:
        """Upper bound on G, the largest constraint of any client; within the tolerance if all clients meet it."""
        return _largest(interval.marginal_limit for client in self.clients for interval in client.constraints)

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate for JSON, with None for numbers that are not finite."""
        names = ("approximate", "approximate_objective", "worst_objective", "worst_constraint")
        derived = {"verdict": str(self.verdict), **{name: getattr(self, name) for name in names}}
        return dict(replace_non_finite(derived | asdict(self)))

    def table(self) -> Table:
        """Return a table for the terminal: violating clients first, then undecided; only the worst of very many."""
        title = f"Constraint <= {self.tolerance:g} with confidence {self.confidence:g}: {self.verdict}"
        table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))

        def key(client: ClientCertificate) -> tuple[float, ...]:
            levels = (client.worst.estimate, client.worst.upper)
            rank = {Verdict.VIOLATES: 0, Verdict.MEETS: 2}.get(client.verdict, 1)
            return (rank, *(math.inf if math.isnan(level) else -level for level in levels))

        ordered = sorted(self.clients, key=key)
        shown = ordered if len(ordered) <= MAX_TABLE_ROWS else ordered[:SHORT_TABLE_ROWS]
        names = [escape(str(client.client)) for client in shown]
        table.add_column("client", overflow="fold", no_wrap=max(map(len, names), default=0) <= MAX_UNWRAPPED_NAME)
        for name in ("rows", "objective\nat most", "constraint", "constraint\nat most", "verdict"):
            table.add_column(name, overflow="fold")
        captions = self.notes
        if len(shown) < len(ordered):
            captions.insert(0, f"The worst {len(shown)} of {len(ordered):,} clients.")
        table.caption = "\n".join(captions)
        for client, name in zip(shown, names, strict=True):
            more = "" if client.rows_needed is None else f" ({client.rows_needed:,} more rows)"
            if client.rows_needed == 0:
                more = " (depends on other clients)"
            rows, estimate = f"{client.worst.rows:,}", format_number(client.worst.estimate)
            table.add_row(name, rows, str(client.objective), estimate, str(client.worst), f"{client.verdict}{more}")
        return table

    @property
    def notes(self) -> list[str]:
        """Notes for readers of the table."""
        worst = {"constraint": self.worst_constraint, "objective": self.worst_objective}
        finite = {name: format_number(value) for name, value in worst.items() if math.isfinite(value)}
        limits = " and ".join(f"the worst client's {name} is at most {value}" for name, value in finite.items())
        private = self.epsilon is not None
        is_wider = any(c.worst.upper > self.tolerance for c in self.clients if c.verdict is Verdict.MEETS)
        approximate = self.approximate or self.approximate_objective
        notes = {
            f"{limits.capitalize()}. The table's limits hold for all clients simultaneously, and are wider.": limits,
            "A client may meet the bound although its simultaneous limit is above it.": is_wider,
            f"{self.tests} models were tested on these rows in a fixed order, and this is the last that passed: its "
            "limit is the tested bound.": self.tests > 1,
            "Only noisy sums of held-out rows were used, and the limits include the noise: every row is (ε, δ)-private "
            f"with ε = {format_number(self.epsilon)}, δ = {self.delta or 0:.2g}.": private,
            "The objective is not shown: its range is unknown.": private and self.approximate_objective,
            "≈ Approximate limits: the range of the losses is unknown, or they are not means over rows.": approximate
            and not private,
        }
        return [note for note, applies in notes.items() if applies]

    def __str__(self) -> str:
        return render_text(self.table(), width=80)


def _largest(limits: Iterable[float]) -> float:
    return max(math.inf if math.isnan(limit) else limit for limit in limits)


def is_certified(certificate: Certificate | None) -> bool:
    """Return whether every client meets the tolerance at the certificate's confidence."""
    return certificate is not None and certificate.verdict is Verdict.MEETS


def describe_certification(certificate: Certificate | None) -> str:
    """Describe the outcome of certification; None stands for a run that was stopped or diverged."""
    if certificate is None:
        return "Not certified: training did not complete."
    count, confidence = len(certificate.clients), f"{100 * certificate.confidence:.4g}% confidence"
    bound = f"at most {certificate.tolerance:g}"
    if is_certified(certificate):
        where = f"at each of the {count} clients" if count > 1 else "at the client"
        note = " Approximate: the range of the constraint is unknown." if certificate.approximate else ""
        return f"Certified: with {confidence}, the constraint is {bound} {where} on new data.{note}"
    sentences = [f"Not certified: there is no {confidence} that the constraint is {bound} at every client."]
    meeting = sum(client.verdict is Verdict.MEETS for client in certificate.clients)
    if meeting:
        sentences.append(f"{meeting} of {count} clients meet it.")
    reasons = {
        Verdict.VIOLATES: ("violates", "violate", "it"),
        Verdict.UNDECIDED: ("has", "have", "too few rows"),
        Verdict.UNKNOWN: ("has", "have", "no rows that concern the constraint"),
    }
    for verdict, (singular, plural, what) in reasons.items():
        failing = []
        for client in (client for client in certificate.clients if client.verdict is verdict):
            more = f", needs about {client.rows_needed:,} more" if client.rows_needed else ""
            failing.append(f"{client.client} ({min(one.rows for one in client.constraints):,} rows{more})")
        if failing:
            verb = singular if len(failing) == 1 else plural
            sentences.append(f"{len(failing)} {verb} {what}: {join_first(failing)}.")
    if math.isfinite(level := certificate.worst_constraint):
        digits = 3 - math.floor(math.log10(abs(level))) if level else 3
        smallest = f"{'about ' * certificate.approximate}{math.ceil(level * 10**digits) / 10**digits:.4g}"
        sentences.append(f"The smallest bound that these rows certify for this model is {smallest}.")
    sentences.append("Add rows of these clients, raise the bound, or lower the confidence before the next run.")
    return " ".join(sentences)


def warn_about_reuse(times: int) -> list[str]:
    """Return a warning if the same rows have certified models of other runs."""
    models = f"{times} model{'s' * (times > 1)} of other runs"
    advice = "The confidence holds for one run: selecting the best of several needs new rows."
    return [f"The same rows have certified {models}. {advice}"] if times else []
