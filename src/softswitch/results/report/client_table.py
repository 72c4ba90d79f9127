"""The report's table of clients: the worst first; of very many, the worst, deciles and a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from softswitch.results.descriptions import ConstraintDescription
from softswitch.results.folder import Run
from softswitch.results.report.charts import MAX_CLIENTS, WORST_CLIENTS
from softswitch.results.report.verdict import CLIENT_MARKS, ClientResult, ClientVerdict, sort_worst_first
from softswitch.support.text import MISSING, format_number, format_percent

ROWS = {"rows": "training rows", "rows_to_choose_by": "validation rows", "rows_held_out": "held-out rows"}
METRICS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "miss_rate": ("miss rate", format_percent),
    "false_alarm_rate": ("false alarms", format_percent),
    "auc": ("AUC", lambda value: MISSING if value is None or math.isnan(value) else f"{value:.3f}"),
    "mean_absolute_error": ("mean absolute error", format_number),
    "error_rate": ("error rate", format_percent),
    "worst_class_recall": ("worst class recall", format_percent),
}
"""Metrics of clients on held-out rows: heading and format."""
BASELINES = {"constant": "constant", "unconstrained": "no constraint"}
"""Models whose metrics are shown below those of the answer."""
HELD_OUT = "held_out"


class Cell(NamedTuple):
    """The text of a cell, and a small text below it."""

    text: str
    small: str = ""


class ClientTable(NamedTuple):
    """The table of clients; with very many, also all rows and verdicts for the search, and deciles."""

    head: list[Cell]
    verdicts: list[ClientVerdict]
    rows: list[list[Cell]]
    every: list[list[str]]
    marks: str
    deciles: dict[str, list[Any]] | None


def build_client_table(run: Run, clients: list[ClientResult], kind: ConstraintDescription, noun: str) -> ClientTable:
    """Build the table of clients; ``noun`` is the heading of their names."""
    columns = _build_columns(run, clients, kind)
    order = sort_worst_first(clients)
    is_large = len(clients) > MAX_CLIENTS
    shown = order[:WORST_CLIENTS] if is_large else order

    def row(i: int) -> list[Cell]:
        return [Cell(clients[i].name), *(column[i] for column in columns.values())]

    digits = {verdict: str(rank) for rank, verdict in enumerate(ClientVerdict)}
    return ClientTable(
        head=[Cell(noun), *(Cell(*heading) for heading in columns)],
        verdicts=[clients[i].verdict for i in shown],
        rows=[row(i) for i in shown],
        every=[["\n".join(cell).rstrip("\n") for cell in row(i)] for i in order] if is_large else [],
        marks="".join(digits[clients[i].verdict] for i in order) if is_large else "",
        deciles=_build_deciles(run, clients, kind, noun) if is_large else None,
    )


def _build_columns(
    run: Run, clients: list[ClientResult], kind: ConstraintDescription
) -> dict[tuple[str, str], list[Cell]]:
    table, metrics = run.clients, _build_metrics(run.clients)

    def cells(values: Sequence[float], write: Callable[[float | None], str] = format_number) -> list[Cell]:
        return [Cell(write(value)) for value in values]

    columns = {("verdict", ""): [Cell(f"{CLIENT_MARKS[c.verdict]} {c.verdict}", c.reason) for c in clients]}
    if any(math.isfinite(client.upper) for client in clients):
        columns["certified", f"{kind.constraint} at most"] = cells([client.upper for client in clients], kind.write)
    estimates = [client.estimate for client in clients]
    if kind.constraint not in {heading for heading, _ in metrics} and any(map(math.isfinite, estimates)):
        columns[kind.constraint, "held-out rows"] = cells(estimates, kind.write)
    columns |= metrics
    columns |= {(heading, ""): cells(table[name]) for name, heading in ROWS.items() if name in table}
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
        if f"{HELD_OUT}_{metric}" not in table:
            continue
        values = [write(value) for value in table[f"{HELD_OUT}_{metric}"]]
        baselines = [model for model in BASELINES if f"{model}_{metric}" in table]
        small = [[write(value) for value in table[f"{model}_{metric}"]] for model in baselines]
        below = [" · ".join(cells) for cells in zip(*small, strict=True)] if small else [""] * len(values)
        columns[heading, " · ".join(BASELINES[model] for model in baselines)] = list(map(Cell, values, below))
    return columns


def _build_deciles(
    run: Run, clients: list[ClientResult], kind: ConstraintDescription, noun: str
) -> dict[str, list[Any]]:
    quantities: dict[str, tuple[list[float], Callable[[float | None], str]]] = {
        f"{kind.constraint}, held-out rows": ([client.estimate for client in clients], kind.write),
        f"{kind.constraint}, certified limit": ([client.upper for client in clients], kind.write),
        f"{kind.constraint}, training rows": ([client.constraint for client in clients], kind.write),
        f"{kind.objective}, training rows": (run.clients["objective"], format_number),
    }
    head, columns = [noun], []
    for name, (values, write) in quantities.items():
        known = np.array([value for value in values if math.isfinite(value)])
        if len(known):
            quantiles = np.quantile(known, np.linspace(0, 1, 11), method="inverted_cdf")
            head.append(name)
            columns.append([write(float(value)) for value in quantiles])
    names = ["the best", *(f"{tenth}0% are at most" for tenth in range(1, 10)), "the worst"]
    return {"head": head, "rows": [[name, *cells] for name, *cells in zip(names, *columns, strict=True)]}
