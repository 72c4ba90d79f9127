"""A round's entry in the history, where clients can be lost and rounds differ in how many they ask."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.clients.evaluation import Overview
from softswitch.method.messages import Decision, Reports
from softswitch.method.remembering import Remembered
from softswitch.method.round import sound
from softswitch.results.record import Record, RecordedClients
from softswitch.support.bit_packing import in_two_parts


def no_reports(clients: int, constraints: int, dtype: Any, pools: bool) -> Reports:
    """So many clients, of whom nobody reported: the reports of a void round."""
    return Reports(
        jnp.full(clients, -jnp.inf, dtype),
        jnp.full((clients, constraints), -jnp.inf, dtype),
        jnp.zeros(constraints, dtype) if pools else None,
        jnp.zeros(clients, bool),
    )


def entry(
    clients: list[int],
    fates: np.ndarray,
    reports: Reports,
    decision: Decision | None,
    full: Overview,
    rows: tuple[int, int],
    believed: Reports | None = None,
    traffic: tuple[int, int] | None = None,
    epsilon: np.ndarray | None = None,
) -> Record:
    """One round as a record of length 1.

    Args:
        clients: the indices of those who were asked.
        fates: what became of each.
        reports: what counted of theirs.
        decision: made of it; None in a void round.
        full: F and G on all data, where it was looked at.
        rows: on how many rows the reports were computed, and on how many a gradient.
        believed: the reports within what others say, where clients may lie; None: all are believed.
        traffic: how many bytes went up and down, where messages are compressed; else None.
        epsilon: ε that each says it has spent, NaN where it says nothing; None: nobody does.
    """
    objective, constraint, mask = (np.asarray(part) for part in (reports.objective, reports.constraint, reports.mask))
    heard = np.where(mask, objective, -np.inf), np.where(mask[:, None], constraint, -np.inf)
    if believed is not None:
        heard = (
            np.where(mask, believed.objective, -np.inf),
            np.where(mask[:, None], believed.constraint, -np.inf),
        )
    feasible = decision is not None and bool(decision.feasible & sound(reports, decision))
    lacking = np.isneginf(objective) | np.isneginf(constraint).any(axis=1)
    told = _recorded(
        np.asarray(clients, np.int32),
        np.where(mask, objective, np.nan).astype(objective.dtype),
        np.where(mask[:, None], constraint, np.nan).astype(objective.dtype),
        {},
        fates.astype(np.int32),
        np.full(len(clients), np.nan) if epsilon is None else epsilon,
    )
    parts: dict[str, Any] = {
        "objective": heard[0].max(initial=-np.inf).astype(objective.dtype),
        "constraint": heard[1].max(initial=-np.inf).astype(objective.dtype),
        "criterion": np.asarray(-np.inf if decision is None else decision.criterion, objective.dtype),
        "feasible": np.asarray(feasible),
        "worst_client": np.int32(clients[int(np.argmax(heard[0]))] if mask.any() else -1),
        "full": Overview(*(np.asarray(part, np.float32) for part in full)),  # type: ignore[arg-type]
        "held_out": None,
        "absent": np.int32((mask & lacking).sum()),
        "rows": np.asarray(rows, np.int64),
        "clients": told,
        "traffic": None if traffic is None else np.array([in_two_parts(np.int64(each)) for each in traffic], np.int64),
    }
    record: Record = jax.tree.map(lambda part: np.asarray(part)[None], Record(**parts))
    return record


def with_memory(record: Record, remembered: Remembered | None, k: int) -> Record:
    """A round's entry with how many clients the server has not heard, and how old its oldest report is."""
    if remembered is None:
        return record
    heard = np.asarray(remembered.heard_at)
    oldest: Any = np.asarray([k - heard[heard >= 0].min(initial=k)], np.int32)
    unheard: Any = np.asarray([(heard == -1).sum()], np.int32)
    return record._replace(unheard=unheard, oldest=oldest)


def with_stage(record: Record, measure: Any) -> Record:
    """A round's entry with the measure of the stage that it ended, where there are stages."""
    return record if measure is None else record._replace(stationarity=np.asarray(measure)[None])  # type: ignore[arg-type]


def joined(before: Record, after: Record) -> Record:
    """Two stretches of rounds as one; the narrower gets empty places."""

    def width(record: Any) -> int:
        return int(record.clients.clients.shape[1])

    def widened(record: Any, to: int) -> Record:
        clients, objective, constraint, metrics, fates, epsilon = record.clients
        if clients.shape[1] == to:  # nearly always: the whole history is not copied once more
            return record
        more = [(0, 0), (0, to - clients.shape[1])]
        wide = _recorded(
            np.pad(clients, more, constant_values=-1),
            np.pad(objective, more, constant_values=np.nan),
            np.pad(constraint, [*more, (0, 0)], constant_values=np.nan),
            metrics,
            np.pad(fates, more),
            np.pad(epsilon, more, constant_values=np.nan),
        )
        widened: Record = record._replace(clients=wide)
        return widened

    widest = max(width(before), width(after))
    together: Record = jax.tree.map(
        lambda a, b: np.concatenate([a, b]), widened(before, widest), widened(after, widest)
    )
    return together


def _recorded(*parts: Any) -> RecordedClients:
    """NumPy's arrays, where the compiled engine has JAX's."""
    return RecordedClients(*parts)
