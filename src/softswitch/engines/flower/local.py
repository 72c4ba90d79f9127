"""What a client must be able to do, whatever it computes with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from softswitch.engines.flower.wire import Arrays, Values
from softswitch.guarantees.unseen_rows.intervals import moved
from softswitch.method.messages import LocalLoss
from softswitch.problem.ranges import Range
from softswitch.results.certificate import Interval
from softswitch.support import checks

BatchSize = int | None | Literal["auto"]
ValueBatchSize = int | None | Literal["same", "auto"]
LOCAL_WORK, GRADIENT = 2**26, 3
"""Rows × parameters of a report that a client chooses for itself, at most; a gradient costs three values."""
LEAST_PARAMETERS, FEWEST_REPORTED, FEWEST_ROWS = 64, 256, 64
"""A row of fewer parameters costs as much as one of so many; and so many rows a report and a gradient are never too
many."""


class Batches(NamedTuple):
    """How many rows a client takes for a report, and for a gradient; None: all of its rows, each once."""

    report: int | None
    update: int | None


def batches_of(
    batch_size: BatchSize, value_batch_size: ValueBatchSize, replace: bool | None, rows: int, parameters: int
) -> Batches:
    """What a client's settings come to.

    Args:
        batch_size: rows for a gradient; "auto": all of them where that is cheap.
        value_batch_size: rows for a report; "same": as ``batch_size``, or where that is "auto" by its own cost.
        replace: True: a batch is drawn with replacement, however few rows there are. Otherwise a client that has no
            more rows than a batch takes each of them once.
        rows: how many it has.
        parameters: how many numbers the model is.
    """
    value_batch_size = batch_size if value_batch_size == "same" else value_batch_size
    affordable = LOCAL_WORK // max(LEAST_PARAMETERS, parameters)
    chosen = {
        "value_batch_size": max(FEWEST_REPORTED, affordable),
        "batch_size": max(FEWEST_ROWS, affordable // GRADIENT),
    }
    found: list[int | None] = []
    for name, told in (("value_batch_size", value_batch_size), ("batch_size", batch_size)):
        size = None if told is None else chosen[name] if told == "auto" else checks.whole_number(name, told, at_least=1)
        own_choice = told == "auto" or not replace
        if replace is False and told != "auto" and size is not None and size > rows:
            raise ValueError(f"{name} = {size} without replacement must be at most {rows}, the rows there are")
        found.append(None if size is not None and size >= rows and own_choice else size)
    return Batches(*found)


def drawn(generator: np.random.Generator, rows: int, size: int, replace: bool) -> np.ndarray:
    """The indices of so many rows, drawn with replacement or without."""
    return generator.integers(rows, size=size) if replace else generator.choice(rows, size=size, replace=False)


def given_or_own(given: Sequence[Range | None], own: Sequence[Range | None]) -> list[Range | None]:
    """The ranges that the server gives, and the client's own where it gives none."""
    return [mine if theirs is None else theirs for theirs, mine in zip(given, own, strict=True)]


def others(params: Arrays, attempt: int) -> Arrays:
    """Other parameters, by the number of the attempt alone."""
    generator = np.random.default_rng(attempt)
    return {name: moved(np.asarray(value), generator, attempt) for name, value in params.items()}


class Refused(Exception):  # noqa: N818 (it is an answer, not an error)
    """Raise this in a client to say that it does not take part in a round; the text is told to the server."""


class Task(NamedTuple):
    """What the server tells with the parameters of a round.

    Attributes:
        round: k.
        seed: of the run; a client's batches come from the seed, its name and k alone.
        local_steps: E.
        step_size: γ.
        switches: whether the local loss is either f_i or a mix of client i's constraints, never both.
    """

    round: int
    seed: int
    local_steps: int
    step_size: float
    switches: bool


@runtime_checkable
class LocalOracle(Protocol):
    """One client. Parameters come and directions go as arrays by name.

    Attributes:
        name: its label in history, log and report; different for every client.
        rows: how many rows it trains on.
        held_out_rows: how many it holds out for the certificate.
        value_rows: on how many rows a report is computed,
        gradient_rows: and on how many a gradient.
        constraints: how many constraints it has.

    One whose constraint is pooled may also tell ``statistics``, how many additive statistics it reports: a server that
    remembers must know it beforehand. One that descends on something else in place of its constraint, because that one
    moves in jumps, may tell ``stands_in = True``: the switch then takes one that is the tolerance itself as met.
    """

    name: str
    rows: int
    held_out_rows: int
    value_rows: int
    gradient_rows: int
    constraints: int

    def report(self, params: Arrays, task: Task) -> Values:
        """f_i and g_i at w_k, on a batch.

        Args:
            params: w_k, arrays by name.
            task: the round's number, seed and settings.
        """
        ...

    def update(self, params: Arrays, task: Task, loss: LocalLoss) -> Arrays:
        """u_i: E local steps from w_k on the local loss; ``loss.constraint`` is this client's row of the mix.

        Args:
            params: w_k, arrays by name.
            task: the round's number, seed, E and γ.
            loss: what to descend on: weights of objective and constraints.
        """
        ...

    def judge(self, params: Arrays) -> Values:
        """f_i and g_i on all of its rows.

        Args:
            params: the model to judge, arrays by name.
        """
        ...

    def certify(self, params: Arrays, error: float, ranges: Sequence[Range | None]) -> list[Interval]:
        """Where f_i and g_i lie, from the rows held out; ``error`` is that of each side of each interval.

        One that also takes ``levels`` (of the type ``ErrorLevels``) is told at which other error probability a limit is
        wanted, and the tolerance, so that its intervals can have p-values. Without them its verdict may need more rows.

        Args:
            params: the model to certify, arrays by name.
            error: the probability with which a limit may be wrong.
            ranges: of a single row's objective and constraints, where they are known.
            levels: a second error probability and the tolerance, for p-values; a client may leave this argument out.
        """
        ...
