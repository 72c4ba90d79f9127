"""Certificates: confidence bounds on every client's constraint from held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from softswitch.results.json_numbers import replace_non_finite
from softswitch.support.text import format_number, join_first, render_text

MAX_TABLE_ROWS, SHORT_TABLE_ROWS = 50, 20  # with more than the first number of clients, the table has only the worst 20
MAX_UNWRAPPED_NAME = 24  # clients' names up to this length are not wrapped
SUSPECT = 0.2  # largest p-value of "within the tolerance" with which a client's rows suggest a violation


class Verdict(StrEnum):
    """Conclusion from held-out rows about one client, or about all clients, at the confidence of the certificate.

    Attributes:
        MEETS: All constraints are within the tolerance.
        TOO_FEW: The number of rows cannot certify the tolerance for any model.
        UNDECIDED: The rows do not decide.
        UNKNOWN: A constraint has no value on the rows, such as a miss rate without positive rows.
        VIOLATES: A constraint is above the tolerance.
    """

    MEETS, TOO_FEW = "meets", "too few rows"
    UNDECIDED, UNKNOWN, VIOLATES = "undecided", "unknown", "violates"

    def sort_key(self, *values: float) -> tuple[float, ...]:
        """Return a key that sorts clients: violating, undecided or unknown, meeting; in each, large values first."""
        rank = {Verdict.VIOLATES: 0, Verdict.MEETS: 2}.get(self, 1)
        return (rank, *(math.inf if math.isnan(value) else -value for value in values))


class Outcome(StrEnum):
    """The outcome of certification.

    Attributes:
        CERTIFIED: Every client meets the tolerance, and the model is useful (or its usefulness is unknown).
        PARTLY: Every client with enough rows meets the tolerance. The others have too few rows for any model.
        CONSTANT: As one of the above, but the model is no better than a constant prediction.
        TOO_FEW_ROWS: Not certified, although no client's rows suggest a violation.
        VIOLATES: Not certified, because some client's rows suggest that it violates the tolerance.
        INCOMPLETE: Training was stopped or diverged.
    """

    CERTIFIED, PARTLY, CONSTANT = "certified", "partly certified", "no better than a constant"
    TOO_FEW_ROWS, VIOLATES, INCOMPLETE = "too few rows", "likely violates", "incomplete"

    @property
    def is_certified(self) -> bool:
        """Whether every client with enough rows is certified, and there is at least one. Others do not count."""
        return self in (Outcome.CERTIFIED, Outcome.PARTLY, Outcome.CONSTANT)


class IntervalMethod(StrEnum):
    """How a confidence interval was computed.

    Attributes:
        BINOMIAL: Clopper-Pearson limits of a rate.
        BETTING: Limits, by betting, of the mean of values in a known range.
        GAP: Limits of the absolute difference of two groups' means, by betting on differences of rows of both groups.
        NORMAL: Normal approximation.
        NOISED: Limits of a mean from a differentially private sum, including the noise.
    """

    BINOMIAL, BETTING, GAP, NORMAL, NOISED = "binomial", "betting", "gap", "normal", "with noise"


@dataclass(frozen=True)
class Interval:
    """Confidence limits of a function's value at a client.

    The upper limits of a function hold at all clients simultaneously with the certificate's confidence, and so do the
    lower limits. Both together have twice the error probability.

    Attributes:
        estimate: Value of the function on the held-out rows; NaN if it has none.
        lower: Lower limit, simultaneous over the clients; −∞ if there is none.
        upper: Upper limit, simultaneous over the clients; ∞ if there is none.
        rows: Number of held-out rows from which the limits were computed.
        deviation: Standard deviation of the function on a single row; ∞ if unknown.
        approximate: Whether the limits are a normal approximation.
        marginal_upper: Upper limit for this client alone, which is tighter. Default: NaN, unknown.
        meets_at: p-value of the null hypothesis that the function is above the tolerance. Default: 1.
        violates_at: p-value of the null hypothesis that the function is within the tolerance. Default: 1.
        method: How the limits were computed. Default: normal approximation.
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
        """``marginal_upper``, or ``upper`` if that is NaN."""
        return self.upper if math.isnan(self.marginal_upper) else self.marginal_upper

    def __str__(self) -> str:
        return f"{'≈ ' * (self.approximate and math.isfinite(self.upper))}{format_number(self.upper)}"


@dataclass(frozen=True)
class ClientCertificate:
    """The certificate of one client.

    Attributes:
        client: Label of the client.
        objective: Interval of its objective f_i.
        constraints: Intervals of its constraints g_i, one per constraint.
        verdict: Verdict on all of its constraints together.
        rows_needed: Estimated number of further rows that would decide an undecided client, counting only rows on which
            the constraint has a value. 0: its rows suffice once other clients are decided. None: decided or unknown.
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
    """Confidence limits and verdicts of all clients, at one confidence level.

    Each of these statements holds with at least this confidence, for any number of clients:

    - Every client with the verdict "meets" meets the tolerance.
    - Every client with the verdict "violates" violates it.
    - The worst client's constraint is at most ``worst_constraint``, and its objective at most ``worst_objective``.
    - Every client's constraint is at most its ``upper`` limit. The same holds for objectives and for lower limits.

    Two of these statements together have twice the error probability.

    Attributes:
        tolerance: Upper bound on g_i that the verdicts refer to.
        confidence: Probability, in (0, 1), with which each statement holds.
        clients: One certificate per client, including clients without held-out rows.
        tests: Number of models tested on these rows in a fixed order; this model is the last that passed. Default: 1.
        epsilon: ε of differential privacy spent on each client's held-out rows; None if they are not private.
        delta: δ of differential privacy; None if the held-out rows are not private.
    """

    tolerance: float
    confidence: float
    clients: tuple[ClientCertificate, ...]
    tests: int = 1
    epsilon: float | None = None
    delta: float | None = None

    def after_tests(self, tests: int) -> Certificate:
        """Return a certificate that is valid for the last of several models that passed tests on the same rows.

        The tests only certify that clients are within the tolerance, so their upper limits become the tolerance. A
        client with too few rows was not tested, and keeps its limits. A certificate of one test, or of a model that
        did not pass, is returned unchanged.

        Args:
            tests: Number of tested models, including this one.
        """
        if tests == 1 or not is_certified(self):
            return self
        limits: dict[str, Any] = {"lower": -math.inf, "upper": self.tolerance, "marginal_upper": self.tolerance}
        clients = []
        for client in self.clients:
            if client.verdict is Verdict.MEETS:
                constraints = tuple(replace(interval, **limits) for interval in client.constraints)
                client = replace(client, constraints=constraints)
            clients.append(replace(client, objective=replace(client.objective, approximate=True)))
        return replace(self, clients=tuple(clients), tests=tests)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any client, in the order violates, unknown, undecided, too few rows, meets."""
        verdicts = {client.verdict for client in self.clients}
        return next((verdict for verdict in reversed(Verdict) if verdict in verdicts), Verdict.MEETS)

    @property
    def approximate(self) -> bool:
        """Whether any constraint's interval is a normal approximation, at the clients with enough rows."""
        tested = [client for client in self.clients if client.verdict is not Verdict.TOO_FEW]
        return any(interval.approximate for client in tested for interval in client.constraints)

    @property
    def approximate_objective(self) -> bool:
        """Whether any objective's interval is a normal approximation."""
        return any(client.objective.approximate for client in self.clients)

    @property
    def worst_objective(self) -> float:
        """Upper confidence limit of F, the worst client's objective; ∞ if there is none.

        It is the largest marginal limit: F exceeds it only if the limit of one client, the worst, is wrong.
        """
        return _largest(client.objective.marginal_limit for client in self.clients)

    @property
    def worst_constraint(self) -> float:
        """Upper confidence limit of G, the largest constraint of any client; ∞ if there is none."""
        return _largest(interval.marginal_limit for client in self.clients for interval in client.constraints)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, the verdict, the outcome and the worst limits for JSON, with None for infinite numbers."""
        names = ("approximate", "approximate_objective", "worst_objective", "worst_constraint")
        texts = {"verdict": str(self.verdict), "outcome": str(judge_certificate(self))}
        derived = {"message": describe_certification(self), **{name: getattr(self, name) for name in names}}
        known = asdict(self)
        for client in known["clients"]:
            client["client"] = str(client["client"])
        return dict(replace_non_finite(texts | derived | known))

    def table(self) -> Table:
        """Return a rich table: violating clients first, then undecided. With more than 50, it has the worst 20."""
        title = f"Constraint <= {self.tolerance:g} with confidence {self.confidence:g}: {self.verdict}"
        table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        ordered = sorted(self.clients, key=lambda c: c.verdict.sort_key(c.worst.estimate, c.worst.upper))
        shown = ordered if len(ordered) <= MAX_TABLE_ROWS else ordered[:SHORT_TABLE_ROWS]
        names = [escape(str(client.client)) for client in shown]
        table.add_column("client", overflow="fold", no_wrap=max(map(len, names), default=0) <= MAX_UNWRAPPED_NAME)
        for name in ("rows", "objective\nat most", "constraint", "constraint\nat most", "verdict"):
            table.add_column(name, overflow="fold")
        selection = [f"The worst {len(shown)} of {len(ordered):,} clients."] if len(shown) < len(ordered) else []
        table.caption = "\n".join(selection + self.notes)
        for client, name in zip(shown, names, strict=True):
            more = f" ({client.rows_needed:,} more rows)" if client.rows_needed else " (depends on other clients)"
            verdict = f"{client.verdict}{'' if client.rows_needed is None else more}"
            rows, estimate = f"{client.worst.rows:,}", format_number(client.worst.estimate)
            table.add_row(name, rows, str(client.objective), estimate, str(client.worst), verdict)
        return table

    @property
    def notes(self) -> list[str]:
        """Sentences that explain the table's limits."""
        worst = {"constraint": self.worst_constraint, "objective": self.worst_objective}
        finite = [f"{name} is at most {format_number(value)}" for name, value in worst.items() if math.isfinite(value)]
        limits, private = " and ".join(f"the worst client's {text}" for text in finite), self.epsilon is not None
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


REASONS = {
    Verdict.TOO_FEW: "Too few rows to certify the bound for any model",
    Verdict.UNDECIDED: "Not decided by their rows",
    Verdict.UNKNOWN: "No rows that concern the constraint",
}


def is_certified(certificate: Certificate | None) -> bool:
    """Return whether every client with enough rows meets the tolerance, and there is such a client."""
    return judge_certificate(certificate).is_certified


def judge_certificate(certificate: Certificate | None, *, is_useful: bool | None = None) -> Outcome:
    """Return the outcome of certification; ``is_useful`` is whether the model beats a constant (None: unknown)."""
    if certificate is None:
        return Outcome.INCOMPLETE
    verdicts = {client.verdict for client in certificate.clients}
    if verdicts <= {Verdict.MEETS, Verdict.TOO_FEW} and Verdict.MEETS in verdicts:
        certified = Outcome.CERTIFIED if verdicts == {Verdict.MEETS} else Outcome.PARTLY
        return Outcome.CONSTANT if is_useful is False else certified
    return Outcome.VIOLATES if any(map(_is_suspect, certificate.clients)) else Outcome.TOO_FEW_ROWS


def _is_suspect(client: ClientCertificate) -> bool:
    """Return whether the rows of a client suggest that it violates the tolerance."""
    is_likely = any(one.violates_at <= SUSPECT for one in client.constraints if one.rows)
    return client.verdict is Verdict.VIOLATES or (client.verdict is not Verdict.MEETS and is_likely)


def describe_certification(
    certificate: Certificate | None, *, is_useful: bool | None = None, write: Callable[[float], str] = "{:.4g}".format
) -> str:
    """Describe the outcome of certification, the failing clients and what to do; None if training did not complete.

    ``write`` formats a value of the constraint.
    """
    outcome = judge_certificate(certificate, is_useful=is_useful)
    if certificate is None:
        return "Not certified: training did not complete."
    clients, confidence = certificate.clients, f"{100 * certificate.confidence:.4g}% confidence"
    bound, count = f"at most {write(certificate.tolerance)}", len(certificate.clients)
    names = {verdict: [one for one in clients if one.verdict is verdict] for verdict in Verdict}
    meeting = len(names[Verdict.MEETS])
    sentences = []
    if outcome.is_certified:
        head = "Certified" if meeting == count else f"Certified at {meeting:,} of {count:,} clients"
        head += ", but no better than a constant prediction" * (outcome is Outcome.CONSTANT)
        where = "at each of them" if meeting > 1 else "there"
        if meeting == count:
            where = f"at each of the {count:,} clients" if count > 1 else "at the client"
        sentences.append(f"{head}: with {confidence}, the constraint is {bound} {where} on new data.")
        if certificate.approximate:
            sentences.append("Approximate: the range of the constraint is unknown.")
    elif outcome is Outcome.VIOLATES:
        suspects = [one for one in clients if _is_suspect(one)]
        observed = join_first([f"{one.client} ({_describe_observed(one, write)})" for one in suspects])
        verb = "violates" if len(suspects) == 1 else "violate"
        sentences.append(f"Not certified: likely {verb} the bound: {observed}. The constraint must be {bound}.")
    else:
        sentences.append(f"Not certified: too few rows to show that the constraint is {bound} at every client.")
        sentences += [f"{meeting:,} of {count:,} clients meet it."] if meeting else []
    for verdict in (Verdict.TOO_FEW, Verdict.UNDECIDED, Verdict.UNKNOWN):
        listed = [one for one in names[verdict] if outcome is not Outcome.VIOLATES or not _is_suspect(one)]
        sentences += [f"{REASONS[verdict]}: {join_first(list(map(_describe_rows, listed)))}."] if listed else []
    level = certificate.worst_constraint
    if not outcome.is_certified and math.isfinite(level):
        about = "about " * certificate.approximate
        sentences.append(f"The smallest bound that these rows certify for this model is {about}{write(level)}.")
    advice = {
        Outcome.CONSTANT: "Raise the bound, or add features that predict the label.",
        Outcome.TOO_FEW_ROWS: "Add rows of these clients, raise the bound, or lower the confidence.",
        Outcome.VIOLATES: "Raise the bound, or lower it in training only; more rows would not help.",
    }
    return " ".join([*sentences, *([advice[outcome]] if outcome in advice else [])])


def _describe_observed(client: ClientCertificate, write: Callable[[float], str]) -> str:
    """Return the observed constraint of a client, with its interval if both limits are finite."""
    worst = max(client.constraints, key=lambda one: -one.violates_at)
    limits = f", interval {write(worst.lower)} to {write(worst.upper)}"
    is_known = math.isfinite(worst.lower) and math.isfinite(worst.upper)
    return f"observed {write(worst.estimate)} on {worst.rows:,} rows{limits if is_known else ''}"


def _describe_rows(client: ClientCertificate) -> str:
    """Return the name of a client, with its number of rows and how many more would decide."""
    more = f", needs about {client.rows_needed:,} more" if client.rows_needed else ""
    return f"{client.client} ({min(one.rows for one in client.constraints):,} rows{more})"


def warn_about_reuse(times: int) -> list[str]:
    """Return a warning if the same rows have certified ``times`` models of other runs; an empty list if 0."""
    models = f"{times} model{'s' * (times > 1)} of other runs"
    advice = "The confidence holds for one run: selecting the best of several needs new rows."
    return [f"The same rows have certified {models}. {advice}"] if times else []
