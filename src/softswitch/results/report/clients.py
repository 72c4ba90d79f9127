"""The report's verdict on each client and on the run, its table of clients, and natural frequencies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from softswitch.results.certificate import Outcome, Verdict
from softswitch.results.descriptions import ConstraintDescription, read_description
from softswitch.results.folder import Run
from softswitch.results.json_numbers import nan_if_none
from softswitch.results.status import StatusCode
from softswitch.support.text import MISSING, format_number, format_percent, join_first

CLIENT_MARKS = {  # the worst first
    Verdict.VIOLATES: "✘",
    Verdict.UNDECIDED: "?",
    Verdict.TOO_FEW: "–",
    Verdict.MEETS: "✔",
}
HEADLINES = {  # by outcome: level, a CSS class, and headline
    Outcome.CERTIFIED: ("good", "Certified"),
    Outcome.PARTLY: ("unsure", "Partly certified"),
    Outcome.CONSTANT: ("unsure", "Certified, but no better than a constant"),
    Outcome.TOO_FEW_ROWS: ("unsure", "Not certified: too few rows"),
    Outcome.VIOLATES: ("bad", "Not certified: likely violates the bound"),
    Outcome.INCOMPLETE: ("unsure", "Stopped early"),
}
MIN_ROWS = 10  # the worst client is chosen among those with at least this many rows, if there are any
TOTAL = 1000  # number of rows that the frequencies refer to
Write = Callable[[float | None], str]  # formats a number; None or NaN is a missing value
METRICS: dict[str, tuple[str, Write]] = {  # a client's metric on held-out rows -> its heading and number format
    "miss_rate": ("miss rate", format_percent),
    "false_alarm_rate": ("false alarms", format_percent),
    "auc": ("AUC", lambda value: MISSING if value is None or math.isnan(value) else f"{value:.3f}"),
    "mean_absolute_error": ("mean absolute error", format_number),
    "error_rate": ("error rate", format_percent),
    "worst_class_recall": ("worst class recall", format_percent),
}
BASELINES = {"constant": "constant", "unconstrained": "no constraint"}  # shown in small text below the answer's
ROWS = {"rows": "training rows", "rows_to_choose_by": "validation rows", "rows_held_out": "held-out rows"}
CALIBRATION: dict[str, tuple[str, str]] = {  # column of clients.csv -> its heading and small text
    "calibration_slope": ("slope", "1 is ideal; below 1: too extreme"),
    "calibration_intercept": ("intercept", "0 is ideal"),
    "expected_events": ("positive rows", "expected from the probabilities"),
    "positives_held_out": ("positive rows", "observed"),
}
OPTIONAL = {  # column of clients.csv -> its heading and small text; shown if the column exists
    "regret": ("regret", "above the client's optimum"),
    "epsilon": ("ε spent", "training rows"),
    "times_heard": ("times heard", ""),
    "last_heard_in_round": ("last heard in round", ""),
}


class ClientResult(NamedTuple):
    """The outcome of one client. With several constraints, the numbers are those of the worst."""

    name: str
    verdict: Verdict  # MEETS, TOO_FEW, VIOLATES or UNDECIDED
    reason: str  # explanation of the verdict in a few words; may be empty
    constraint: float  # on the training rows
    estimate: float = math.nan  # on the held-out rows; NaN without a certificate
    lower: float = math.nan  # simultaneous confidence limits; NaN without a certificate
    upper: float = math.nan


class RunVerdict(NamedTuple):
    """The verdict on a run, as the report shows it."""

    level: str  # "good", "unsure" or "bad", a CSS class
    headline: str
    new_data: str  # what holds on new data, or why the model is not certified
    details: str  # what holds on the training rows


def summarise_clients(run: Run) -> list[ClientResult]:
    """Return the outcome of every client in the order of clients.csv; without a certificate, by the training rows."""
    table, is_nonnegative = run.clients, read_description(run.about).is_nonnegative
    certified = {client["client"]: client for client in (run.certificate or {}).get("clients", [])}
    largest = np.max([values for name, values in table.items() if name.startswith("constraint")], axis=0).tolist()

    def summarise(name: str, constraint: float) -> ClientResult:
        if not certified:
            verdict = Verdict.MEETS if constraint <= run.about["tolerance"] else Verdict.VIOLATES
            return ClientResult(name, verdict, "on training rows", constraint)
        if name not in certified:
            return ClientResult(name, Verdict.UNDECIDED, "no held-out rows", constraint)
        judged, more = certified[name]["verdict"], certified[name].get("rows_needed")
        worst = max(certified[name]["constraints"], key=lambda one: math.inf if one["upper"] is None else one["upper"])
        estimate, lower, upper = (nan_if_none(worst[limit]) for limit in ("estimate", "lower", "upper"))
        lower = max(lower, 0.0) if is_nonnegative and math.isfinite(lower) else lower
        verdict = Verdict.UNDECIDED if judged == Verdict.UNKNOWN else Verdict(judged)
        reason = "no relevant held-out rows" if judged == Verdict.UNKNOWN else ""
        if verdict is Verdict.TOO_FEW and (rows := worst.get("rows")) is not None:
            reason = f"{rows:,} row{'s' * (rows != 1)}, not enough for any model"
        if not reason and verdict is Verdict.UNDECIDED and more is not None:
            reason = f"about {more:,} more rows" if more else "depends on other clients"
        return ClientResult(name, verdict, reason, constraint, estimate, lower, upper)

    return list(map(summarise, table["client"], largest))


def sort_worst_first(clients: list[ClientResult]) -> list[int]:
    """Return the clients' indices: violating first, then undecided, then meeting; in each, the largest value first."""
    keys = [client.verdict.sort_key(client.estimate, client.upper, client.constraint) for client in clients]
    return sorted(range(len(clients)), key=keys.__getitem__)


def judge_run(run: Run) -> RunVerdict:
    """Return the verdict on a run from its status and the outcome of certification, in run.json or the certificate."""
    about, certification = run.about, run.about.get("certification") or run.certificate
    code, violating = about["status"]["code"], about["violating"]
    message = f"{about['status']['message'].capitalize()}."
    if code == StatusCode.DIVERGED:
        return RunVerdict("bad", "The run diverged", "", message)
    above = f"{len(violating):,} of {about['clients']:,} {'is' if len(violating) == 1 else 'are'} above the bound"
    training = f"{above}: {join_first(violating, 3)}" if violating else f"all {about['clients']:,} meet"
    stopped = f"The run was stopped after {about['rounds']:,} rounds. " if code == StatusCode.STOPPED else ""
    training = f"{stopped}On their training rows {training}."
    outcome = None if certification is None else Outcome(certification["outcome"])
    if stopped and outcome is not None and about.get("certification") is None:
        outcome = Outcome.INCOMPLETE
    if code == StatusCode.NO_FEASIBLE_ROUND and not (outcome is not None and outcome.is_certified):
        return RunVerdict("bad", "No round was feasible", "", f"{message} {training}")
    if certification is None or outcome is None:
        headline = "Violated on training rows" if violating else "Not certified"
        return RunVerdict("bad" if violating else "unsure", headline, "There is no certificate for new data.", training)
    level, headline = HEADLINES[outcome]
    if outcome is Outcome.CERTIFIED:
        headline += " and useful" * bool((about.get("usefulness") or {}).get("is_useful"))
        headline = "Certified, but violated on training rows" if violating else headline
    if outcome.is_certified and run.certificate is not None and run.certificate["approximate"]:
        headline += ", approximately"
    return RunVerdict("bad" if violating else level, headline, certification["message"], training)


class Cell(NamedTuple):
    """A cell of a table in the report: its text, and an optional smaller text below it."""

    text: str
    small: str = ""


def build_columns(run: Run, clients: list[ClientResult], kind: ConstraintDescription) -> dict[Cell, list[Cell]]:
    """Return the columns of the table of clients: the cells by heading, in the order of ``clients``."""
    table, metrics = run.clients, _build_metrics(run.clients)

    def cells(values: Sequence[float], write: Write = format_number) -> list[Cell]:
        return [Cell(write(value)) for value in values]

    columns = {
        Cell(run.client_noun): [Cell(client.name) for client in clients],
        Cell("verdict"): [Cell(f"{CLIENT_MARKS[c.verdict]} {c.verdict}", c.reason) for c in clients],
    }
    limits, estimates = [client.upper for client in clients], [client.estimate for client in clients]
    if any(map(math.isfinite, limits)):
        columns[Cell("certified", f"{kind.constraint} at most")] = cells(limits, kind.write)
    if kind.constraint not in {heading.text for heading in metrics} and any(map(math.isfinite, estimates)):
        columns[Cell(kind.constraint, "held-out rows")] = cells(estimates, kind.write)
    columns |= metrics | {Cell(heading): cells(table[name]) for name, heading in ROWS.items() if name in table}
    constraints = [name for name in table if name.startswith("constraint")]
    headings = run.about.get("constraints") or [f"{kind.constraint} {i}" for i in range(1, len(constraints) + 1)]
    for name, heading in zip(constraints, headings if len(constraints) > 1 else [kind.constraint], strict=True):
        columns[Cell(heading, "training rows")] = cells(table[name], kind.write)
    columns[Cell(kind.objective, "training rows")] = cells(table["objective"])
    return columns | {Cell(*heading): cells(table[name]) for name, heading in OPTIONAL.items() if name in table}


def _build_metrics(table: Mapping[str, Sequence[float]]) -> dict[Cell, list[Cell]]:
    """Return columns of held-out metrics by heading, with the baselines' in small text; empty if there are none."""
    columns = {}
    for metric, (heading, write) in METRICS.items():
        if f"held_out_{metric}" in table:
            baselines = [model for model in BASELINES if f"{model}_{metric}" in table]
            texts = [list(map(write, table[f"{model}_{metric}"])) for model in ("held_out", *baselines)]
            small = " · ".join(BASELINES[model] for model in baselines)
            columns[Cell(heading, small)] = [Cell(text, " · ".join(below)) for text, *below in zip(*texts, strict=True)]
    return columns


def build_calibration(run: Run) -> dict[Cell, list[Cell]]:
    """Return the columns of the table of each client's calibration; empty if clients.csv has none."""
    table = run.clients
    if "calibration_slope" not in table:
        return {}
    columns = {Cell(run.client_noun): [Cell(name) for name in table["client"]]}
    for name, heading in CALIBRATION.items():
        columns[Cell(*heading)] = [Cell(format_number(value, 3)) for value in table.get(name, ())]
    return columns


class Frequencies(NamedTuple):
    """Numbers per 1,000 rows of a client, or on average."""

    where: str  # the client and why it is shown, such as "va: most missed"
    positives: int
    missed: int  # positive rows that are classified as negative
    negatives: int
    false_alarms: int  # negative rows that are classified as positive
    basis: str  # numbers of held-out rows; empty for the average


def natural_frequencies(run: Run) -> list[Frequencies]:
    """Return the frequencies at the worst clients and on average over the clients; empty if they are unknown.

    The worst clients are the one that misses the largest share and the one with the largest share of false alarms.
    """
    table: Mapping[str, Sequence[Any]] = run.clients
    needed = ("rows_held_out", "positives_held_out", "held_out_miss_rate", "held_out_false_alarm_rate")
    if not set(needed) <= set(table):
        return []
    rows, positives, missed, alarms = (np.array(table[name], dtype=float) for name in needed)
    share = np.divide(positives, rows, out=np.full(len(rows), math.nan), where=rows > 0)
    worst: dict[int, list[str]] = {}
    for rates, counts, text in ((missed, positives, "most missed"), (alarms, rows - positives, "most false alarms")):
        known = np.flatnonzero(np.isfinite(rates) & np.isfinite(share)).tolist()
        enough = [i for i in known if counts[i] >= MIN_ROWS]
        if known:
            i = max(enough or known, key=lambda j: (rates[j], counts[j]))
            worst.setdefault(i, []).append(text)
    entries = []
    for i, reasons in worst.items():
        basis = f"estimated from {positives[i]:,.0f} and {rows[i] - positives[i]:,.0f} held-out rows"
        where = f"{table['client'][i]}: {' and '.join(reasons)}"
        entries.append(_count(where, share[i], missed[i], alarms[i], basis))
    if entries and len(rows) > 1:
        entries.append(_count(f"Average {run.client_noun}", _mean(share), _mean(missed), _mean(alarms)))
    return entries


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan


def _count(where: str, share: float, missed: float, alarms: float, basis: str = "") -> Frequencies:
    positives = round(TOTAL * share)
    sides = ((positives, missed), (TOTAL - positives, alarms))
    errors = [round(number * rate) if math.isfinite(rate) else 0 for number, rate in sides]
    return Frequencies(where, positives, errors[0], TOTAL - positives, errors[1], basis)
