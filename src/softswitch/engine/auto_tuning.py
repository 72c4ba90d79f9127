"""What is chosen before a run for all that its user left out: batches, rounds, the first step. It counts work only."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.schedules import FallingStep, NormalizedAdam
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.evaluation import padded_widths
from softswitch.oracles.options import Compute, Sampling
from softswitch.problem.problem import Problem

WORK = 2**35
"""Rows × parameters that a run may take, a gradient counted three times: some tens of seconds on two cores."""
LEAST_PARAMETERS = 64
"""A row of fewer parameters costs as much as one of so many."""
FEWEST_ROUNDS, FEWEST_FOR_NETWORKS, MOST_ROUNDS = 300, 1500, 20_000
NETWORK, FOR_EACH = 512, 6
"""A model of more parameters is taken for a network: more rounds, on fewer rows each. So many of its parameters cost a
row as much as one of a linear model: they are multiplied with many rows at once."""
FEWEST_ROWS, MOST_ROWS = (256, 1024), (2048, 8192)
"""Rows of a batch for a gradient and for a report, where it is not all of them: more brings little."""
DRAWN = 2.5
"""A row that is drawn costs as much as so many that are read in order."""
CYCLES, CYCLES_OF_LAYERS, LONGER, MOST_CYCLES = 40, 8, math.sqrt(2), 20
"""The first cycle takes this part of the rounds, for models of several layers that part, and every later one √2 times
as many as the one before,"""
SHORTEST_CYCLE, SHORTEST_NOISY_CYCLE = 40, 75
"""but none fewer than this; or than that, where reports are of some rows only."""
LOOKS, FEWEST_CYCLES = 0.05, 2
"""Answers are judged by this share of a run's work at most: there are fewer cycles if need be, but never fewer than
this, and each has"""
JUDGED = 2
"""so many answers judged, its last iterate and its average; where it is cheap also the best by its reports."""
FIRST_WAY, SMALLEST_FIRST_STEP, LARGEST_FIRST_STEP = 2.5, 0.01, 0.1
"""How far a parameter can go in the first cycle, and the steps that this may come to, in units of the start."""
FARTHER = 8.0
"""How many times as far that is where the constraint moves in jumps."""
SHARPNESS, SHARPNESS_OF_JUMPS = 0.3, 10.0
"""α, in units of the change from round to round; and that of a constraint that moves in jumps, whose changes are as
large as what clients differ by: clients that keep the bound are then to have no say in how it is kept."""
MOMENTUM, LONG_MOMENTUM, LONG_CYCLE = 0.9, 0.99, 1000
"""Of the server optimiser; every second cycle of so many rounds has the larger one."""
SMOOTHING = 0.8
"""Of remembered reports, where they are noisy."""

MORE_THAN_FIT = 2**62
"""As many rows as cannot be taken together."""


@dataclass(frozen=True)
class Choice:
    """What a run that chooses for itself begins with.

    Attributes:
        rounds: how many rounds there are at most.
        may_end: whether it may end earlier, where nothing more is gained.
        first_cycle: how many rounds the first cycle takes.
        first_step: the step it begins with.
        exact: whether reports have no noise: every client tells of all its rows in every round.
        chosen_for: the rounds that were asked for when this was chosen; None: none. A run may be made longer later.
        jumps: whether the constraint moves in jumps, as rates do, and has a stand-in.
        frugal: whether it saves on judging answers, since that costs much beside its rounds.
    """

    rounds: int
    may_end: bool
    first_cycle: int
    first_step: float
    exact: bool
    chosen_for: int | None = None
    jumps: bool = False
    frugal: bool = False

    def method(
        self,
        asked: Method,
        step_size: FallingStep,
        momentum: float,
        threshold: float,
        local_step_size: FallingStep | None = None,
    ) -> Method:
        """The method of one cycle: what the user set, and for the rest what is chosen."""
        chosen: dict[str, Any] = {"step_size": step_size}
        if asked.optimizer is None:
            chosen["optimizer"] = NormalizedAdam(momentum=momentum)
        if asked.local_step_size is None:
            chosen["local_step_size"] = local_step_size or step_size
        if asked.threshold is None and asked.slack is None:
            chosen["threshold"] = threshold
        if isinstance(asked, SoftmaxSGM):
            if asked.alpha is None:
                chosen |= {"alpha": SHARPNESS, "alpha_scale": "change"}
                if self.jumps:
                    chosen["constraint_alpha"] = SHARPNESS_OF_JUMPS
            if asked.criterion is None:
                chosen["criterion"] = "max"
        return replace(asked, **chosen)

    def next_length(self, done: int, cycles: int) -> int:
        """How many rounds the next cycle takes, after so many rounds and cycles."""
        left, length = self.rounds - done, round(self.first_cycle * LONGER**cycles)
        return left if left - length < length * LONGER / 2 else length

    @property
    def looks(self) -> int:
        """How many answers are judged on the way, beside the last two: the start, and some after every cycle."""
        done = cycles = 0
        while done < self.rounds:
            done, cycles = done + self.next_length(done, cycles), cycles + 1
        return 1 + (JUDGED if self.frugal else JUDGED + 1) * cycles - JUDGED

    def template(self, asked: Method) -> Method:
        """The method of the first cycle, before anything is known of the clients."""
        step = FallingStep(first=self.first_step, rounds=self.first_cycle)
        return self.method(asked, step, MOMENTUM, float(asked.tolerance))

    def told(self, clients: Any) -> dict[str, str]:
        """What a run of these clients, an ``Oracle``, begins with: in words, by what it is."""
        said = {"rounds": f"at most {self.rounds:,}" if self.may_end else f"{self.rounds:,}"}
        for name, what in (("update_batching", "rows for a gradient"), ("report_batching", "rows for a report")):
            batching = getattr(clients, name, None)
            if batching is not None:
                said[what] = "all of a client's" if batching.draws is None else f"{batching.width:,} of each client's"
        said["reports"] = "exact" if self.exact else "noisy"
        return said | {"first cycle": f"{self.first_cycle:,} rounds", "first step": f"{self.first_step:.3g}"}


def choose(
    problem: Problem,
    clients: ClientData | StreamedData,
    sampling: Sampling,
    compute: Compute,
    rounds: int | None,
    memory: Any,
    *,
    again: bool = True,
) -> tuple[Choice, Sampling, Compute, Memory | None]:
    """Choose what is left out, by the sizes of model and data and the start alone.

    Args:
        problem: the problem.
        clients: its clients.
        sampling: which clients take part, and which rows they use.
        compute: how they compute.
        rounds: how many there are to be; None: that is chosen.
        memory: how the server remembers; "auto": that is chosen.
        again: whether clients may be asked to report at two iterates on the same rows.
    """
    parameters = _costing(size_of(problem.start))
    m, largest = sampling.participants(len(clients)), int(clients.sizes.max())
    fewest = FEWEST_ROUNDS if size_of(problem.start) <= NETWORK else FEWEST_FOR_NETWORKS
    a_round = WORK / parameters / (fewest if rounds is None else min(max(rounds, fewest), MOST_ROUNDS))
    steps = sampling.local_steps
    for_report: Any = sampling.value_batch_size
    for_update: Any = sampling.batch_size
    grouped = steps == 1 and m == len(clients) and compute.client_batch_size is None
    most_rows = MOST_ROWS
    if isinstance(clients, StreamedData):
        grouped, all_rows, fit = False, m * largest, clients.buffer_bytes // 2 // clients.row_bytes
        if all_rows > fit:  # nothing may take them all
            all_rows, largest, a_batch = MORE_THAN_FIT, MORE_THAN_FIT, max(1, fit // (m * (1 + steps)))
            most_rows = (min(MOST_ROWS[0], a_batch), min(MOST_ROWS[1], a_batch))
    else:
        all_rows = int(padded_widths(clients).sum()) if grouped else m * largest
    if for_update == "auto" and for_report in ("auto", "same", None) and all_rows * (1 + 3 * steps) <= a_round:
        for_report = for_update = None
    elif for_report == "auto" and grouped and all_rows <= a_round:
        for_report, a_round = None, 2 * (a_round - all_rows)
    if for_update == "auto":
        for_update = _all_or(a_round / 2 / (3 * steps * m * DRAWN), FEWEST_ROWS[0], most_rows[0], largest)
    if for_report == "same":
        for_report = for_update
    elif for_report == "auto":
        for_report = _all_or(a_round / 2 / (m * DRAWN), FEWEST_ROWS[1], most_rows[1], largest)
    sampling = replace(sampling, batch_size=for_update, value_batch_size=for_report)
    compute = replace(compute, group_by_size=grouped and for_report is None)
    value_rows, update_rows = (
        all_rows if size is None else DRAWN * m * min(size, largest) for size in (for_report, for_update)
    )
    if rounds is None:
        affordable = int(WORK / parameters / (value_rows + 3 * steps * update_rows))
        most = min(max(affordable, fewest), MOST_ROUNDS)
    else:
        most = rounds
    everyone, noisy = m == len(clients), for_report is not None
    if memory == "auto":
        memory = memory_for(everyone=everyone, noisy=noisy, again=again)
    exact = everyone and not noisy
    jumps = problem.constraint_surrogate is not None
    value_rows *= memory.values_a_report if isinstance(memory, Memory) else 1
    look = None if exact else float(clients.sizes.sum()) / (value_rows + 3 * steps * update_rows)
    made = first_choice(problem.start, most, may_end=rounds is None, exact=exact, jumps=jumps, noisy=noisy, look=look)
    return made, sampling, compute, memory


def first_choice(
    start: Any,
    rounds: int,
    *,
    may_end: bool,
    exact: bool,
    jumps: bool = False,
    noisy: bool = False,
    look: float | None = None,
) -> Choice:
    """The first cycle of a run of so many rounds: its step by its length, by the start, smaller for many parameters.

    Args:
        start: w_0.
        rounds: of the run.
        may_end: whether it may end earlier.
        exact: whether reports have no noise.
        jumps: whether the constraint moves in jumps.
        noisy: whether a report is of some rows only.
        look: how many rounds it costs to judge an answer; None: that does not matter.
    """
    shortest = SHORTEST_NOISY_CYCLE if noisy else SHORTEST_CYCLE
    cycle = max(shortest, rounds // (CYCLES_OF_LAYERS if has_layers(start) else CYCLES))
    asked = None if may_end else rounds
    made = Choice(rounds, may_end, first_cycle=cycle, first_step=0.0, exact=exact, chosen_for=asked, jumps=jumps)
    if look is not None and made.looks * look > LOOKS * rounds:
        cycle = max(cycle, _first_of(_cycles_that_pay(rounds, look), rounds))
        made = replace(made, first_cycle=cycle, frugal=True)
    largest = max(float(np.abs(np.asarray(leaf)).max(initial=0)) for leaf in jax.tree.leaves(start))
    step = min(max(2 * FIRST_WAY / cycle, SMALLEST_FIRST_STEP), LARGEST_FIRST_STEP) * max(1.0, largest)
    step *= math.sqrt(LEAST_PARAMETERS / max(LEAST_PARAMETERS, size_of(start)))
    return replace(made, first_step=step * (FARTHER if jumps else 1.0))


def _cycles_that_pay(rounds: int, look: float) -> int:
    """How many cycles there may be: one look at the start, and ``JUDGED`` after each but the last."""
    return max(FEWEST_CYCLES, int((LOOKS * rounds / look - 1) / JUDGED) + 1)


def _first_of(cycles: int, rounds: int) -> int:
    """The length of the first of so many cycles, each √2 times as long as the one before."""
    return int(rounds / sum(LONGER**i for i in range(min(cycles, MOST_CYCLES))))


def memory_for(*, everyone: bool, noisy: bool, again: bool = False) -> Memory | None:
    """What a server remembers that chooses for itself: nothing where everyone tells of all rows in every round.

    Args:
        everyone: whether all clients take part in every round.
        noisy: whether a report is of some rows only.
        again: whether clients can report at two iterates on the same rows.
    """
    if everyone and not noisy:
        return None
    if noisy and again:
        return Memory(corrected=True)
    return Memory(smoothing=SMOOTHING if noisy else 0.0)


def size_of(params: Any) -> int:
    """How many numbers parameters are."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(params))


def has_layers(params: Any) -> bool:
    """Whether parameters hold several matrices: a network's layers. Its way down is long, and not straight."""
    return sum(np.ndim(leaf) >= 2 for leaf in jax.tree.leaves(params)) >= 2


def _costing(parameters: int) -> int:
    """What a row of a model of so many parameters costs, in parameters of a linear model."""
    return max(LEAST_PARAMETERS, parameters if parameters <= NETWORK else parameters // FOR_EACH)


def _all_or(rows: float, fewest: int, most: int, largest: int) -> int | None:
    """So many rows a batch, within limits; None where that is all of them at every client."""
    return None if rows >= largest else min(max(fewest, int(rows)), most, largest)
