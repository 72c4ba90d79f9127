"""The clients in a report: the verdict on each and on the run, and their table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from softswitch.results.certificate import Verdict
from softswitch.results.descriptions import ConstraintDescription, read_description
from softswitch.results.folder import Run
from softswitch.results.json_numbers import nan_if_none
from softswitch.support.text import MISSING, format_number, format_percent, join_first

MARKS = {"good": "✔", "unsure": "?", "bad": "✘"}
CLIENT_MARKS = {Verdict.VIOLATES: "✘", Verdict.UNDECIDED: "?", Verdict.MEETS: "✔"}  # in the order of importance
MAX_NAMES = 3  # number of clients that a summary names
MAX_CLIENTS, WORST_CLIENTS = 50, 20  # more clients than the first number are summarised, with only the worst few shown
Write = Callable[[float | None], str]
ROWS = {"rows": "training rows", "rows_to_choose_by": "validation rows", "rows_held_out": "held-out rows"}
METRICS: dict[str, tuple[str, Write]] = {  # metrics of clients on held-out rows: heading and format
    "miss_rate": ("miss rate", format_percent),
    "false_alarm_rate": ("false alarms", format_percent),
    "auc": ("AUC", lambda value: MISSING if value is None or math.isnan(value) else f"{value:.3f}"),
    "mean_absolute_error": ("mean absolute error", format_number),
    "error_rate": ("error rate", format_percent),
    "worst_class_recall": ("worst class recall", format_percent),
}
BASELINES = {"constant": "constant", "unconstrained": "no constraint"}  # shown below the metrics of the answer


class ClientResult(NamedTuple):
    """The outcome of one client: the largest constraint on training rows, and its limits on held-out rows if any."""

    name: str
    verdict: Verdict
    reason: str
    constraint: float
    estimate: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    more_rows: int | None = None


class RunVerdict(NamedTuple):
    """The outcome of a run; its level is good, unsure or bad."""

    level: str
    headline: str
    counts: str
    details: str

    @property
    def mark(self) -> str:
        """A sign shown in addition to the colour."""
        return MARKS[self.level]


def summarise_clients(run: Run) -> list[ClientResult]:
    """Return the outcome of every client, in the order of the run's table."""
    table, is_nonnegative = run.clients, read_description(run.about).is_nonnegative
    certified = {str(client["client"]): client for client in (run.certificate or {}).get("clients", [])}
    worst = np.max([values for name, values in table.items() if name.startswith("constraint")], axis=0).tolist()

    def summarise(name: str, constraint: float) -> ClientResult:
        if not certified:
            meets = constraint <= run.about["tolerance"]
            verdict = Verdict.MEETS if meets else Verdict.VIOLATES
            return ClientResult(name, verdict, "on training rows", constraint)
        if name not in certified:
            return ClientResult(name, Verdict.UNDECIDED, "no held-out rows", constraint)
        judged, more = certified[name]["verdict"], certified[name].get("rows_needed")
        sides = ("estimate", "lower", "upper")
        limits = [[nan_if_none(interval[side]) for side in sides] for interval in certified[name]["constraints"]]
        estimate, lower, upper = max(limits, key=lambda limit: math.inf if math.isnan(limit[2]) else limit[2])
        lower = max(lower, 0.0) if is_nonnegative and math.isfinite(lower) else lower
        verdict = Verdict(judged) if judged in (Verdict.MEETS, Verdict.VIOLATES) else Verdict.UNDECIDED
        reason = "no relevant held-out rows" if judged == "unknown" else ""
        if not reason and verdict is Verdict.UNDECIDED and more is not None:
            reason = f"about {more:,} more rows" if more else "depends on other clients"
        return ClientResult(name, verdict, reason, constraint, estimate, lower, upper, more)

    return list(map(summarise, table["client"], worst))


def sort_worst_first(clients: list[ClientResult]) -> list[int]:
    """Return the indices of clients: violating first, then undecided, then meeting; the largest constraint first."""

    def key(i: int) -> tuple[float, ...]:
        levels = (clients[i].estimate, clients[i].upper, clients[i].constraint)
        rank = list(CLIENT_MARKS).index(clients[i].verdict)
        return (rank, *(math.inf if math.isnan(level) else -level for level in levels))

    return sorted(range(len(clients)), key=key)


def judge_run(run: Run, clients: list[ClientResult]) -> RunVerdict:
    """Return the verdict on a run, given the outcomes of its clients."""
    about, certificate = run.about, run.certificate
    code, violating = about["status"]["code"], about["violating"]
    message = f"{about['status']['message'].capitalize()}."
    if code == "diverged":
        return RunVerdict("bad", "The run diverged", "", message)
    counts, is_above = _count_verdicts(clients), "is" if len(violating) == 1 else "are"
    stopped = f"The run was stopped after {about['rounds']:,} rounds. " if code == "stopped" else ""
    training = f"{stopped}On their training rows all {about['clients']:,} meet."
    if violating:
        above = f"{len(violating):,} of {about['clients']:,} {is_above} above the bound"
        training = f"{stopped}On their training rows {above}: {join_first(violating, MAX_NAMES)}."
    if code == "no-feasible-round":
        return RunVerdict("bad", "No round was feasible", counts, f"{message} {training}")
    if certificate is None:
        headline = "Violated on training rows" if violating else "Not certified"
        details = f"{training} There is no certificate for new data."
        return RunVerdict("bad" if violating else "unsure", headline, counts, details)
    approximate = ", approximately" * certificate["approximate"]
    confidence = f"Based on held-out rows, with {format_percent(certificate['confidence'])} confidence{approximate}"
    verdicts = {client.verdict for client in clients}
    is_certified = about.get("certification") is None or about["certification"]["certified"]
    level, headline = "good", f"Certified{approximate}"
    if Verdict.VIOLATES in verdicts:
        level, headline = "bad", "Violated"
    elif not is_certified or Verdict.UNDECIDED in verdicts:
        level, headline = "bad" if violating else "unsure", "Not certified"
    elif violating:
        level, headline = "bad", "Certified, but violated on training rows"
    elif code == "stopped":
        level, headline = "unsure", "Stopped early"
    return RunVerdict(level, headline, counts, f"{confidence}. {training}")


def _count_verdicts(clients: list[ClientResult]) -> str:
    """Return a text such as "3 of 4 meet, 1 undecided (other: about 120 more rows needed)"."""
    ordered = [clients[i] for i in sort_worst_first(clients)]
    violating, undecided, meeting = ([c for c in ordered if c.verdict is verdict] for verdict in CLIENT_MARKS)
    parts = [f"{len(meeting):,} of {len(clients):,} meet{'s' * (len(meeting) == len(clients) == 1)}"]
    if len(meeting) == len(clients) > 1:
        parts = [f"All {len(meeting):,} meet"]
    if violating:
        names = join_first([client.name for client in violating], MAX_NAMES)
        parts.append(f"{len(violating):,} violate{'s' * (len(violating) == 1)} ({names})")
    if undecided:
        parts.append(f"{len(undecided):,} undecided ({_describe_needed_rows(undecided)})")
    return ", ".join(parts)


def _describe_needed_rows(undecided: list[ClientResult]) -> str:
    needing = sorted((client for client in undecided if client.more_rows), key=lambda client: client.more_rows or 0)
    rest = join_first([client.name for client in undecided if not client.more_rows], MAX_NAMES)
    if len(needing) > MAX_NAMES:
        least, most = needing[0].more_rows, needing[-1].more_rows
        rows = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        who = "each needs" if len(needing) == len(undecided) else f"{len(needing):,} of them need"
        return f"{who} about {rows} more rows"
    needed = f"{', '.join(f'{client.name}: about {client.more_rows:,}' for client in needing)} more rows needed"
    return "; ".join(filter(None, (needed if needing else "", rest)))


class Cell(NamedTuple):
    """The text of a cell, and a small text below it."""

    text: str
    small: str = ""


class ClientTable(NamedTuple):
    """The table of clients; with very many, also all rows and verdicts for the search, and deciles."""

    head: list[Cell]
    verdicts: list[Verdict]
    rows: list[list[Cell]]
    every: list[list[str]]
    marks: str
    deciles: dict[str, list[Any]] | None


def build_client_table(run: Run, clients: list[ClientResult], kind: ConstraintDescription, noun: str) -> ClientTable:
    """Build the table of clients, the worst first; ``noun`` is the heading of their names."""
    columns = _build_columns(run, clients, kind)
    order, is_large = sort_worst_first(clients), len(clients) > MAX_CLIENTS
    rows = [[Cell(clients[i].name), *(column[i] for column in columns.values())] for i in order]
    shown = WORST_CLIENTS if is_large else len(rows)
    ranks = [list(CLIENT_MARKS).index(clients[i].verdict) for i in order]
    return ClientTable(
        head=[Cell(noun), *(Cell(*heading) for heading in columns)],
        verdicts=[clients[i].verdict for i in order[:shown]],
        rows=rows[:shown],
        every=[["\n".join(cell).rstrip("\n") for cell in row] for row in rows] if is_large else [],
        marks="".join(map(str, ranks)) if is_large else "",
        deciles=_build_deciles(run, clients, kind, noun) if is_large else None,
    )


def _build_columns(
    run: Run, clients: list[ClientResult], kind: ConstraintDescription
) -> dict[tuple[str, str], list[Cell]]:
    table, metrics = run.clients, _build_metrics(run.clients)

    def cells(values: Sequence[float], write: Write = format_number) -> list[Cell]:
        return [Cell(write(value)) for value in values]

    columns = {("verdict", ""): [Cell(f"{CLIENT_MARKS[c.verdict]} {c.verdict}", c.reason) for c in clients]}
    if any(math.isfinite(client.upper) for client in clients):
        columns["certified", f"{kind.constraint} at most"] = cells([client.upper for client in clients], kind.write)
    estimates = [client.estimate for client in clients]
    if kind.constraint not in {heading for heading, _ in metrics} and any(map(math.isfinite, estimates)):
        columns[kind.constraint, "held-out rows"] = cells(estimates, kind.write)
    columns |= metrics | {(heading, ""): cells(table[name]) for name, heading in ROWS.items() if name in table}
    constraints = [name for name in table if name.startswith("constraint")]
    headings = run.about.get("constraints") or [f"{kind.constraint} {i}" for i in range(1, len(constraints) + 1)]
    for name, heading in zip(constraints, headings if len(constraints) > 1 else [kind.constraint], strict=True):
        columns[heading, "training rows"] = cells(table[name], kind.write)
    columns[kind.objective, "training rows"] = cells(table["objective"])
    optional = {
        "regret": ("regret", "above the client's optimum"),
        "epsilon": ("ε spent", "training rows"),
        "times_heard": ("times heard", ""),
        "last_heard_in_round": ("last heard in round", ""),
    }
    return columns | {heading: cells(table[name]) for name, heading in optional.items() if name in table}


def _build_metrics(table: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], list[Cell]]:
    """Return the metrics of the model on held-out rows, with those of the baselines in small text."""
    columns = {}
    for metric, (heading, write) in METRICS.items():
        if f"held_out_{metric}" in table:
            baselines = [model for model in BASELINES if f"{model}_{metric}" in table]
            texts = [list(map(write, table[f"{model}_{metric}"])) for model in ("held_out", *baselines)]
            small = " · ".join(BASELINES[model] for model in baselines)
            columns[heading, small] = [Cell(text, " · ".join(below)) for text, *below in zip(*texts, strict=True)]
    return columns


def _build_deciles(
    run: Run, clients: list[ClientResult], kind: ConstraintDescription, noun: str
) -> dict[str, list[Any]]:
    quantities: dict[str, tuple[list[float], Write]] = {
        f"{kind.constraint}, held-out rows": ([client.estimate for client in clients], kind.write),
        f"{kind.constraint}, certified limit": ([client.upper for client in clients], kind.write),
        f"{kind.constraint}, training rows": ([client.constraint for client in clients], kind.write),
        f"{kind.objective}, training rows": (run.clients["objective"], format_number),
    }
    columns = {noun: ["the best", *(f"{tenth}0% are at most" for tenth in range(1, 10)), "the worst"]}
    for name, (values, write) in quantities.items():
        if known := [value for value in values if math.isfinite(value)]:
            quantiles = np.quantile(known, np.linspace(0, 1, 11), method="inverted_cdf")
            columns[name] = [write(float(value)) for value in quantiles]
    return {"head": list(columns), "rows": [list(row) for row in zip(*columns.values(), strict=True)]}
