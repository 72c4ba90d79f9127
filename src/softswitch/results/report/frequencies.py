"""What a model does per 1,000 rows of a client, as natural frequencies from its metrics on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from softswitch.results.folder import Run

MIN_ROWS = 10  # the worst client is chosen among those with at least this many rows, if there are any
TOTAL = 1000  # number of rows that the frequencies refer to


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
