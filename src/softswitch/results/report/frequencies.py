"""What a model does per 1,000 rows of a client, as natural frequencies from its metrics on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from softswitch.results.folder import Run

MIN_ROWS = 20  # the worst client is chosen among those with at least this many rows, if there are any
TOTAL = 1000  # number of rows that the frequencies refer to


class Frequencies(NamedTuple):
    """Numbers per 1,000 rows of a client, or on average."""

    where: str  # the client and why it is shown, such as "va: most missed"
    positives: int
    missed: int  # positive rows that are classified as negative
    negatives: int
    false_alarms: int  # negative rows that are classified as positive


def natural_frequencies(run: Run) -> list[Frequencies]:
    """Return the frequencies at the worst clients and on average over the clients; empty if they are unknown.

    The worst clients are the one that misses the largest share and the one with the largest share of false alarms.
    """
    table: Mapping[str, Sequence[Any]] = run.clients
    needed = ("rows_held_out", "positives_held_out", "held_out_miss_rate", "held_out_false_alarm_rate")
    if not set(needed) <= set(table):
        return []
    rows, positives, missed, alarms = (np.array(table[name], dtype=float) for name in needed)
    worst: dict[int, list[str]] = {}
    for rates, counts, text in ((missed, positives, "most missed"), (alarms, rows - positives, "most false alarms")):
        known = np.flatnonzero(np.isfinite(rates))
        enough = [i for i in known if counts[i] >= MIN_ROWS]
        if len(known):
            i = max(enough or known, key=lambda j: (rates[j], counts[j]))
            worst.setdefault(int(i), []).append(text)
    share = np.divide(positives, rows, out=np.full(len(rows), math.nan), where=rows > 0)
    if not worst or not np.isfinite(share).any():
        return []
    entries = [
        _count(f"{table['client'][i]}: {' and '.join(reasons)}", share[i], missed[i], alarms[i])
        for i, reasons in worst.items()
    ]
    if len(rows) > 1:
        means = [
            float(np.mean(values[np.isfinite(values)])) if np.isfinite(values).any() else math.nan
            for values in (share, missed, alarms)
        ]
        entries.append(_count(f"Average {run.client_noun}", *means))
    return entries


def _count(where: str, share: float, missed: float, alarms: float) -> Frequencies:
    positives = round(TOTAL * share)
    negatives = TOTAL - positives
    counts = [
        round(number * rate) if math.isfinite(rate) else 0
        for number, rate in ((positives, missed), (negatives, alarms))
    ]
    return Frequencies(where, positives, counts[0], negatives, counts[1])
