"""The report's table of clients: violating and undecided ones first; of very many the worst, deciles, and a search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from softswitch.results.descriptions import ConstraintDescription
from softswitch.results.folder import Run
from softswitch.results.report.charts import MOST_CLIENTS, WORST
from softswitch.results.report.client_states import ClientStanding, ClientVerdict, worst_first
from softswitch.support.text import DASH, number, share

ROWS = {"rows": "rows trained on", "rows_to_choose_by": "chosen by", "rows_held_out": "held out"}
METRICS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "miss_rate": ("miss rate", share),
    "false_alarm_rate": ("false alarms", share),
    "auc": ("AUC", lambda value: DASH if value is None or math.isnan(value) else f"{value:.3f}"),
    "mean_absolute_error": ("mean absolute error", number),
    "error_rate": ("error rate", share),
    "worst_class_recall": ("worst class recall", share),
}
"""What is measured at clients on held-out rows: its name for people, and how its values are written."""
BESIDE = {"constant": "constant", "unconstrained": "no constraint"}
"""The models beside the answer, whose values stand below its own."""
SEEN = "held_out"


class Cell(NamedTuple):
    """A cell: its text, and what stands small below it."""

    text: str
    small: str = ""


class ClientTable(NamedTuple):
    """What the page shows of the clients.

    Attributes:
        head: the columns.
        standings: how each shown client stands, for its colour.
        rows: those shown, the worst first.
        every: all clients in the same order, to be searched; empty where all are shown.
        marks: all clients' standings, as digits, likewise.
        deciles: of constraint and objective, where clients are many; else None.
    """

    head: list[Cell]
    standings: list[ClientVerdict]
    rows: list[list[Cell]]
    every: list[list[str]]
    marks: str
    deciles: dict[str, list[Any]] | None


def client_table(run: Run, found: list[ClientStanding], words: ConstraintDescription, word: str) -> ClientTable:
    """The table.

    Args:
        run: it.
        found: how its clients stand.
        words: how its constraint is spoken of.
        word: what a client is called.
    """
    columns = _columns(run, found, words)
    order = worst_first(found)
    many = len(found) > MOST_CLIENTS
    shown = order[:WORST] if many else order
    head = [Cell(word), *(Cell(*name) for name in columns)]

    def row(i: int) -> list[Cell]:
        return [Cell(found[i].name), *(column[i] for column in columns.values())]

    digits = {standing: str(rank) for rank, standing in enumerate(ClientVerdict)}
    return ClientTable(
        head=head,
        standings=[found[i].standing for i in shown],
        rows=[row(i) for i in shown],
        every=[["\n".join(cell).rstrip("\n") for cell in row(i)] for i in order] if many else [],
        marks="".join(digits[found[i].standing] for i in order) if many else "",
        deciles=_deciles(run, found, words, word) if many else None,
    )


def _columns(run: Run, found: list[ClientStanding], words: ConstraintDescription) -> dict[tuple[str, str], list[Cell]]:
    """By their names, each with what stands small below it: one cell a client."""
    told = run.clients
    columns: dict[tuple[str, str], list[Cell]] = {("verdict", ""): [Cell(one.marked, one.words) for one in found]}
    seen = _metrics(told)
    if any(math.isfinite(one.upper) for one in found):
        columns["promised", f"{words.constraint} at most"] = [Cell(words.write(one.upper)) for one in found]
    if words.constraint not in {heading for heading, _ in seen} and any(math.isfinite(one.estimate) for one in found):
        columns[words.constraint, "held-out rows"] = [Cell(words.write(one.estimate)) for one in found]
    columns |= seen
    for name, heading in ROWS.items():
        if name in told:
            columns[heading, ""] = [Cell(number(value)) for value in told[name]]
    constraints = [name for name in told if name.startswith("constraint")]
    headings = run.about.get("constraints") or [f"{words.constraint} {i}" for i in range(1, len(constraints) + 1)]
    for name, heading in zip(constraints, headings if len(constraints) > 1 else [words.constraint], strict=True):
        columns[heading, "training rows"] = [Cell(words.write(value)) for value in told[name]]
    columns[words.objective, "training rows"] = [Cell(number(value)) for value in told["objective"]]
    if "regret" in told:
        columns["regret", "above its own best"] = [Cell(number(value)) for value in told["regret"]]
    if "epsilon" in told:
        columns["ε spent", "training rows"] = [Cell(number(value)) for value in told["epsilon"]]
    for name in ("times_heard", "last_heard_in_round"):
        if name in told:
            columns[name.replace("_", " "), ""] = [Cell(number(value)) for value in told[name]]
    return columns


def _metrics(told: Mapping[str, Sequence[float]]) -> dict[tuple[str, str], list[Cell]]:
    """What the model does on held-out rows, with what the others do small below it."""
    columns = {}
    for metric, (heading, write) in METRICS.items():
        if f"{SEEN}_{metric}" not in told:
            continue
        beside = [model for model in BESIDE if f"{model}_{metric}" in told]
        small = [[write(value) for value in told[f"{model}_{metric}"]] for model in beside]
        own = [write(value) for value in told[f"{SEEN}_{metric}"]]
        below = [" · ".join(cells) for cells in zip(*small, strict=True)] if small else [""] * len(own)
        columns[heading, " · ".join(BESIDE[model] for model in beside)] = [
            Cell(*cells) for cells in zip(own, below, strict=True)
        ]
    return columns


def _deciles(run: Run, found: list[ClientStanding], words: ConstraintDescription, word: str) -> dict[str, list[Any]]:
    """Of how many clients the values are at most so high."""
    quantities: dict[str, tuple[list[float], Callable[[float | None], str]]] = {
        f"{words.constraint}, held-out rows": ([one.estimate for one in found], words.write),
        f"{words.constraint}, certificate's limit": ([one.upper for one in found], words.write),
        f"{words.constraint}, training rows": ([one.constraint for one in found], words.write),
        f"{words.objective}, training rows": (run.clients["objective"], number),
    }
    head, columns = [word], []
    shares = np.linspace(0, 1, 11)
    for name, (values, write) in quantities.items():
        known = np.array([value for value in values if math.isfinite(value)])
        if len(known):
            head.append(name)
            columns.append([write(float(value)) for value in np.quantile(known, shares, method="inverted_cdf")])
    names = ["the best", *(f"{at}0% are at most" for at in range(1, 10)), "the worst"]
    return {"head": head, "rows": [[name, *cells] for name, *cells in zip(names, *columns, strict=True)]}
