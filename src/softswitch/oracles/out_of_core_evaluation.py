"""Whether functions are means over rows, found by trying: only then can a client be looked at in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.data.client_data import ClientData, Rows
from softswitch.data.streamed_data import Outline, StreamedData
from softswitch.oracles import evaluation
from softswitch.oracles.base import Evaluation
from softswitch.oracles.client_batches import slice_of_whole_data
from softswitch.oracles.evaluation import EvaluationPlan, compiled_values, plan_evaluation
from softswitch.oracles.losses import Losses
from softswitch.oracles.row_feed import PrefetchThread
from softswitch.problem.parameters import WEIGHT, Batch, Params, checked_params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support import checks

ROWS, TRIALS, ROUNDING = 2**14, 4, 1e-4
"""Rows to try with at most, spread over a client's; how often they are parted; what rounding may make of a mean."""
FARTHER = (0.0, 0.1, 1.0)
"""How far from the start to try, in standard deviations of random numbers: at the start all rows may be alike."""


def means_over_rows(data: StreamedData, client: int, losses: Losses, start: Params) -> dict[str, bool]:
    """Whether the objective and the constraint of some rows are the mean of what they are of these rows in two parts.

    A pooled constraint is not tried: its statistics are sums over rows by their meaning.
    """
    total = int(data.sizes[client])
    fit = max(3, data.buffer_bytes // 2 // data.row_bytes)
    rows = np.unique(np.linspace(0, total - 1, min(total, ROWS, fit)).astype(np.int64))
    store = data.store(len(rows))
    data.read(int(data.offsets[client, 0]) + rows, store, 0)
    draws, one = np.random.default_rng(0), len(rows) // 3
    means = {"objective": True, "constraint": True}
    for farther in FARTHER:
        params = _moved(start, farther, draws)
        for _ in range(TRIALS):
            order = draws.permutation(len(rows))
            parts = [
                tuple(np.asarray(value, float) for value in _both(params, _batch(store, some, params), losses))
                for some in (order, order[:one], order[one:])
            ]
            for name, whole, first, second in zip(means, *parts, strict=True):
                put_together = (one * first + (len(rows) - one) * second) / len(rows)
                scale = np.maximum(np.abs(first), np.abs(second)) + np.abs(whole)
                means[name] &= bool((np.abs(whole - put_together) <= ROUNDING * scale + 1e-30).all())
    return means | ({"constraint": True} if losses.has_pooled_constraint else {})


def _moved(start: Params, farther: float, draws: np.random.Generator) -> Params:
    return jax.tree.map(lambda leaf: leaf + farther * draws.normal(size=leaf.shape).astype(leaf.dtype), start)


def _batch(store: dict[str, np.ndarray], rows: np.ndarray, params: Params) -> Batch:
    weights = jnp.full((len(rows),), 1 / len(rows), float_dtype(params))
    return {**{key: jnp.asarray(column[rows]) for key, column in store.items()}, WEIGHT: weights}


@partial(jax.jit, static_argnames="losses")
def _both(params: Params, batch: Batch, losses: Losses) -> tuple[Any, Any]:
    return losses.objective(params, batch), losses.constraints(params, batch)


PART_ROWS = 1 << 18
"""The numbers of so many rows are made at a time."""


class RowBlock(NamedTuple):
    """Some clients whose rows are looked at together, or a piece of one that is too large for that.

    Attributes:
        clients: who.
        width: how many rows of each the program has room for.
        piece: which of the one client's rows: the first, and the one after the last; None: all.
    """

    clients: np.ndarray
    width: int
    piece: tuple[int, int] | None = None


class BlockValues:
    """All clients' values, by a way through data that need not fit in memory.

    A client that is too large for half of the buffer is looked at in pieces, where its functions are means over rows.

    Args:
        data: whose.
        losses: of which functions.
        ignoring: the functions that do not read the rows' weights.
        start: parameters to try with whether functions are means.
    """

    def __init__(self, data: StreamedData, losses: Losses, ignoring: tuple[str, ...], start: Params) -> None:
        self._data, self._losses, self._ignoring = data, losses, ignoring
        self._ahead, self._half = PrefetchThread(), data.buffer_bytes // 2
        self._way = plan_evaluation(Outline(data, data.looked_at[:, None]), ignoring)
        large = [block for block in self._blocks() if block.piece is not None]
        if large:
            self._refuse_what_is_no_mean(int(large[0].clients[0]), start)

    def judged(self, params: Params) -> Evaluation:
        """How good parameters are at every client, and of a pooled constraint on all rows put together."""
        objective, constraint, statistics = self._values(params)
        pooled = None
        if statistics is not None:
            sizes = jnp.asarray(self._data.sizes.astype(np.float64), statistics.dtype)
            pooled = np.asarray(_pooled(sizes, jnp.asarray(statistics), self._losses))
        return Evaluation(objective, constraint, pooled)

    def _values(self, params: Params) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        found: list[tuple[RowBlock, tuple[np.ndarray, ...]]] = []
        for block, rows in self._ahead.each(self._read, self._blocks()):
            each = _one_width(len(block.clients), block.width, self._data.row_bytes)
            values: tuple[Any, ...] = compiled_values(each, rows, params, self._losses)
            if self._losses.has_pooled_constraint:
                values = (*values, _statistics(each, rows, params, self._losses))
            found.append((block, tuple(np.asarray(one) for one in values)))
        every = [np.zeros((len(self._data), *one.shape[1:]), one.dtype) for one in found[0][1]]
        in_pieces: dict[int, list[np.ndarray]] = {}
        for block, of_block in found:
            if block.piece is None:
                for whole, own in zip(every, of_block, strict=True):
                    whole[block.clients] = own
                continue
            client = int(block.clients[0])
            share = (block.piece[1] - block.piece[0]) / int(self._data.looked_at[client])
            sums = in_pieces.setdefault(client, [np.zeros(one.shape[1:]) for one in of_block])
            for so_far, own in zip(sums, of_block, strict=True):
                so_far += share * own[0].astype(np.float64)
        for client, sums in in_pieces.items():
            for whole, own in zip(every, sums, strict=True):
                whole[client] = own
            if self._losses.has_pooled_constraint:
                every[1][client] = np.asarray(self._losses.pool(jnp.asarray(every[2][client])))
        objective, constraint, *rest = every
        return objective, constraint, rest[0] if rest else None

    def _blocks(self) -> Iterator[RowBlock]:
        """Clients of similar size together, as many as fit."""
        row_bytes = self._data.row_bytes
        for group, width in zip(self._way.groups, self._way.widths, strict=True):
            clients, a_client = np.asarray(group), width * row_bytes
            if int(self._data.looked_at[clients].max()) * row_bytes > self._half:
                for client in clients:
                    yield from self._pieces(int(client))
                continue
            at_once = slice_of_whole_data(len(clients), a_client)
            # Whole slices, where one fits: these are then the slices of data in memory.
            many = self._half // (at_once * a_client) * at_once or max(1, self._half // a_client)
            for first in range(0, len(clients), many):
                yield RowBlock(clients[first : first + many], width)

    def _pieces(self, client: int) -> Iterator[RowBlock]:
        """One client's rows, as many at a time as fit."""
        rows = int(self._data.looked_at[client])
        many = min(rows, max(1, self._half // self._data.row_bytes))
        if many == rows:
            yield RowBlock(np.asarray([client]), rows)
            return
        for first in range(0, rows, many):
            end = min(rows, first + many)
            yield RowBlock(np.asarray([client]), end - first if self._ignoring else many, (first, end))

    def _read(self, block: RowBlock) -> Rows:
        sizes = self._data.looked_at[block.clients]
        if block.piece is not None:
            sizes = np.asarray([block.piece[1] - block.piece[0]])
        store, first = self._data.store(len(block.clients) * block.width), 0
        for clients, piece in self._parts(block):
            rows = self._data.rows_looked_at(clients, piece)
            self._data.read(rows, store, first)
            first += len(rows)
        columns = {key: jax.device_put(column, may_alias=True) for key, column in store.items()}
        offsets = np.cumsum(sizes) - sizes
        return Rows(columns, *(jnp.asarray(one.astype(np.int32)[:, None]) for one in (offsets, sizes)))

    def _parts(self, block: RowBlock) -> Iterator[tuple[np.ndarray, tuple[int, int] | None]]:
        """A block's rows some at a time: their numbers are not to take more memory than they do."""
        if len(block.clients) > 1 and block.width <= PART_ROWS:
            together = PART_ROWS // block.width
            for first in range(0, len(block.clients), together):
                yield block.clients[first : first + together], None
            return
        for client in block.clients:
            begin, end = block.piece or (0, int(self._data.looked_at[client]))
            for first in range(begin, end, PART_ROWS):
                yield np.asarray([client]), (first, min(end, first + PART_ROWS))

    def _refuse_what_is_no_mean(self, client: int, start: Params) -> None:
        found = means_over_rows(self._data, client, self._losses, start)
        wrong = [name for name, is_mean in found.items() if not is_mean]
        if wrong:
            raise ValueError(
                f"client {self._data.names[client]!r} has {int(self._data.looked_at[client]):,} rows to look at, more "
                f"than fit into half of buffer_bytes = {self._data.buffer_bytes:,}; they can be looked at in pieces "
                f"only where {' and '.join(wrong)} is a mean over rows, and it is not: raise buffer_bytes, or look at "
                "fewer rows (judge_rows)"
            )


def _one_width(clients: int, width: int, row_bytes: int) -> EvaluationPlan:
    """A way through clients that are all of one width, in their order."""
    everyone = jnp.arange(clients, dtype=jnp.int32)
    return EvaluationPlan((everyone,), everyone, (width,), row_bytes)


@partial(jax.jit, static_argnames="losses")
def _statistics(way: EvaluationPlan, rows: Rows, params: Params, losses: Losses) -> Any:
    return way.each(lambda batch: losses.statistics(params, batch), rows, float_dtype(params))


@partial(jax.jit, static_argnames="losses")
def _pooled(sizes: Any, statistics: Any, losses: Losses) -> Any:
    return losses.pool(jnp.tensordot(sizes, statistics, axes=1))


def evaluate(problem: Problem, clients: ClientData | StreamedData, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """f_i and g_i of every client on all of its rows: one entry a client, and clients × constraints.

    For held-out data as well: make a ``ClientData`` of it, or ``StreamedData``.

    Args:
        problem: whose objective and constraint.
        clients: on whose data; all rows of it, or of ``StreamedData`` those that it looks at.
        params: parameters, any tree of floating arrays.
    """
    if not isinstance(clients, StreamedData):
        return evaluation.evaluate(problem, clients, params)
    checks.expect("problem", problem, Problem)
    params = checked_params("params", params)
    traced = problem.trace(Outline(clients).batch_shapes(int(clients.sizes.max()), float_dtype(params)), params)
    found = BlockValues(clients, Losses.of(problem), traced.ignore_weight, params).judged(params)
    return found.objective, found.constraint
