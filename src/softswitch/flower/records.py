"""A round's entry in the history, where clients can be lost and rounds differ in how many they ask."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from softswitch import round
from softswitch.engine import Record
from softswitch.evaluation import Overview
from softswitch.rules import Decision, Reports
from softswitch.weighting import maximum


def no_reports(clients: int, constraints: int, dtype: Any, pools: bool) -> Reports:
    """So many clients, of whom nobody reported: the reports of a void round."""
    return Reports(
        jnp.full(clients, -jnp.inf, dtype),
        jnp.full((clients, constraints), -jnp.inf, dtype),
        jnp.zeros(constraints, dtype) if pools else None,
        jnp.zeros(clients, bool),
    )


def not_evaluated() -> Overview:
    """F and G on all data in a round that did not look."""
    return Overview(*[np.float32(np.nan)] * 4)


def entry(
    clients: list[int], fates: np.ndarray, reports: Reports, decision: Decision | None, full: Overview, rows: int
) -> Record:
    """One round as a record of length 1.

    Args:
        clients: the indices of those who were asked.
        fates: what became of each.
        reports: what counted of theirs.
        decision: made of it; None in a void round.
        full: F and G on all data, where it was looked at.
        rows: on how many rows the reports were computed.
    """
    objective, constraint, mask = (np.asarray(part) for part in reports[:2] + reports[3:4])
    dtype = objective.dtype
    feasible = decision is not None and bool(decision.feasible & round.sound(reports, decision))
    criterion = -np.inf if decision is None else float(decision.criterion)
    lacking = np.isneginf(objective) | np.isneginf(constraint).any(axis=1)
    worst = clients[int(np.argmax(np.where(mask, objective, -np.inf)))] if mask.any() else -1
    told = (
        np.asarray(clients, np.int32),
        np.where(mask, objective, np.nan).astype(dtype),
        np.where(mask[:, None], constraint, np.nan).astype(dtype),
        {},
        fates.astype(np.int32),
    )
    alone = Record(
        objective=np.asarray(maximum(reports.objective, reports.mask)) if len(mask) else dtype.type(-np.inf),
        constraint=np.asarray(maximum(reports.constraint, reports.mask[:, None])) if len(mask) else dtype.type(-np.inf),
        criterion=np.asarray(criterion, dtype),
        feasible=np.asarray(feasible),
        worst_client=np.asarray(worst, np.int32),
        full=Overview(*(np.asarray(part, np.float32) for part in full)),
        held_out=None,
        absent=np.asarray(int((mask & lacking).sum()), np.int32),
        rows=np.asarray(rows, np.int64),
        clients=told,  # type: ignore[arg-type]
    )
    return jax.tree.map(lambda part: np.asarray(part)[None], alone)


def joined(before: Record, after: Record) -> Record:
    """Two stretches of rounds as one; the narrower gets empty places."""
    assert before.clients is not None
    assert after.clients is not None
    width = max(part.clients[0].shape[1] for part in (before, after))  # type: ignore[index]

    def widened(record: Record) -> Record:
        clients, objective, constraint, metrics, fates = record.clients  # type: ignore[misc]
        more = [(0, 0), (0, width - clients.shape[1])]
        wide = (
            np.pad(clients, more, constant_values=-1),
            np.pad(objective, more, constant_values=np.nan),
            np.pad(constraint, [*more, (0, 0)], constant_values=np.nan),
            metrics,
            np.pad(fates, more),
        )
        return record._replace(clients=wide)  # type: ignore[arg-type]

    together: Record = jax.tree.map(lambda a, b: np.concatenate([a, b]), widened(before), widened(after))
    return together
