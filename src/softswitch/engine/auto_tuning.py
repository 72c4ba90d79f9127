"""Settings of an auto-tuned run that are chosen before it starts: batch sizes, rounds, memory and the first step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np

from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.methods.schedules import FallingStep, NormalizedAdam
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.oracles.base import Federation
from softswitch.oracles.evaluation import padded_widths
from softswitch.oracles.options import Compute, Sampling
from softswitch.problem.parameters import count_parameters
from softswitch.problem.problem import Problem

WORK = 2**35  # work limit of a run in rows × parameters; a gradient counts three times. About a minute on two cores
MIN_PARAMETERS = 64  # a row costs at least as much as in a model with this number of parameters
NETWORK_PARAMETERS = 512  # models with more parameters are networks, with more rounds on fewer rows
NETWORK_DISCOUNT = 6  # divisor of the cost per parameter of a network, which is computed on many rows at once
MIN_ROUNDS, MIN_NETWORK_ROUNDS, MAX_ROUNDS = 300, 1500, 20_000  # limits of the chosen number of rounds
MIN_ROWS, MAX_ROWS = (256, 1024), (2048, 8192)  # limits of the batch sizes (gradient, report), unless they are all rows
RANDOM_ACCESS = 2.5  # cost of a random row access relative to a sequential one
RESTARTS, LAYERED_RESTARTS = 40, 8  # rounds of a run per round of its first restart; the second for models with layers
GROWTH = math.sqrt(2)  # ratio of the numbers of rounds of consecutive restarts
MIN_RESTART_ROUNDS = 40  # minimum number of rounds of the first restart, with reports on all rows
MIN_NOISY_RESTART_ROUNDS = 75  # minimum number of rounds of the first restart, with reports on sampled rows
EVALUATION_SHARE = 0.05  # largest share of the work for evaluations of answers, if necessary with fewer restarts
MIN_RESTARTS, MAX_RESTARTS = 2, 20  # limits of the number of restarts if evaluations are expensive
ANSWERS = 2  # evaluated iterates of a restart: the last and the average; and the best by its reports, if that is cheap
FIRST_LENGTH = 2.5  # distance that a parameter can move in the first restart, relative to max(1, largest initial value)
MIN_FIRST_STEP, MAX_FIRST_STEP = 0.01, 0.1  # limits of the first step size, relative to max(1, largest initial value)
JUMP_FACTOR = 8.0  # factor on the first step size if the constraint moves in jumps, as rates do
SHARPNESS = 0.3  # softmax sharpness α, in units of the inverse change of the worst client's value in a round
JUMP_SHARPNESS = 10.0  # softmax sharpness α of constraints that move in jumps, as large as the clients' differences
MOMENTUM = 0.9  # momentum of the server optimizer
LONG_MOMENTUM, LONG_RESTART = 0.99, 1000  # momentum of every second restart with at least this number of rounds
SMOOTHING = 0.8  # weight β of earlier reports in a client's remembered report, if reports are noisy
TOO_MANY_ROWS = 2**62  # number of rows that stands for more than fit into memory
FEDERATION_ROUNDS = 2000  # default number of rounds for a ``Federation``, whose cost of a round is not known


@dataclass(frozen=True)
class Choice:
    """The settings of an auto-tuned run that are chosen before it starts."""

    rounds: int  # maximum number of rounds
    may_end: bool  # whether the run stops when progress stalls
    first_length: int  # number of rounds of the first restart
    first_step: float  # initial step size of the first restart
    exact: bool  # whether every client reports on all its rows in every round
    chosen_for: int | None = None  # number of rounds that the user requested at first; None if it was chosen
    jumps: bool = False  # whether the constraint moves in jumps, as rates do, and has a surrogate
    frugal: bool = False  # whether to save evaluations of answers, because they are expensive compared with rounds

    def method(
        self,
        requested: Method,
        step_size: FallingStep,
        momentum: float,
        threshold: float,
        local_step_size: FallingStep | None = None,
    ) -> Method:
        """Return the method of one restart: ``requested`` with automatic settings in place of None."""
        chosen: dict[str, Any] = {"step_size": step_size}
        if requested.optimizer is None:
            chosen["optimizer"] = NormalizedAdam(momentum=momentum)
        if requested.local_step_size is None:
            chosen["local_step_size"] = local_step_size or step_size
        if requested.threshold is None and requested.slack is None:
            chosen["threshold"] = threshold
        if isinstance(requested, SoftmaxSGM):
            if requested.alpha is None:
                chosen |= {"alpha": SHARPNESS, "alpha_scale": "change"}
                if self.jumps:
                    chosen["constraint_alpha"] = JUMP_SHARPNESS
            if requested.criterion is None:
                chosen["criterion"] = "max"
        return replace(requested, **chosen)

    def template(self, requested: Method) -> Method:
        """Return ``requested`` with its automatic settings, as far as they do not depend on the clients' reports."""
        step = FallingStep(first=self.first_step, rounds=self.first_length)
        return self.method(requested, step, MOMENTUM, float(requested.tolerance))

    def next_length(self, done: int, restarts: int) -> int:
        """Return the number of rounds of the next restart, after ``done`` rounds and ``restarts`` restarts."""
        left, length = self.rounds - done, round(self.first_length * GROWTH**restarts)
        return left if left - length < length * GROWTH / 2 else length

    def count_evaluations(self) -> int:
        """Return how many models the run evaluates on all data: the start, and the answers of each restart."""
        done = restarts = 0
        while done < self.rounds:
            done, restarts = done + self.next_length(done, restarts), restarts + 1
        return 1 + (ANSWERS if self.frugal else ANSWERS + 1) * restarts - ANSWERS

    def describe(self, oracle: Any) -> dict[str, str]:
        """Return descriptions of the settings by name, for ``Result.auto_settings``; ``oracle`` has the batch sizes."""
        lines = {"rounds": f"at most {self.rounds:,}" if self.may_end else f"{self.rounds:,}"}
        for name, label in (("update_batching", "rows for a gradient"), ("report_batching", "rows for a report")):
            if (batching := getattr(oracle, name, None)) is not None:
                every = batching.draws is None
                lines[label] = "all of a client's" if every else f"{batching.width:,} of each client's"
        lines["reports"] = "exact" if self.exact else "noisy"
        return lines | {"first restart": f"{self.first_length:,} rounds", "first step": f"{self.first_step:.3g}"}


class Tuned(NamedTuple):
    """The settings of an auto-tuned run, and its options with batch sizes and memory in place of "auto"."""

    choice: Choice
    sampling: Sampling
    compute: Compute


def choose_settings(
    problem: Problem,
    clients: ClientData | StreamedData,
    sampling: Sampling,
    compute: Compute,
    rounds: int | None,
    methods: Sequence[Method],
) -> Tuned:
    """Choose rounds (if None), batch sizes and memory (if "auto") and the first restart by the sizes of model and data.

    ``methods`` are the automatic methods that share the settings.
    """
    size = count_parameters(problem.start)
    is_network = size > NETWORK_PARAMETERS
    work = WORK / max(MIN_PARAMETERS, size // NETWORK_DISCOUNT if is_network else size)  # in rows
    m, largest = sampling.participants(len(clients)), int(clients.sizes.max())
    all_take_part, steps = m == len(clients), sampling.local_steps
    min_rounds, max_rows = MIN_NETWORK_ROUNDS if is_network else MIN_ROUNDS, MAX_ROWS
    round_work = work / (min_rounds if rounds is None else min(max(rounds, min_rounds), MAX_ROUNDS))
    grouped = steps == 1 and all_take_part and compute.client_batch_size is None
    if isinstance(clients, StreamedData):
        grouped, all_rows, fit = False, m * largest, clients.buffer_bytes // 2 // clients.row_bytes
        if all_rows > fit:
            all_rows = largest = TOO_MANY_ROWS
            batch = max(1, fit // (m * (1 + steps)))
            max_rows = (min(MAX_ROWS[0], batch), min(MAX_ROWS[1], batch))
    else:
        all_rows = int(padded_widths(clients).sum()) if grouped else m * largest

    def limit(rows: float, smallest: int, most: int) -> int | None:
        return None if rows >= largest else min(max(smallest, int(rows)), most, largest)

    update: Any = sampling.batch_size
    report: Any = sampling.value_batch_size
    if update == "auto" and report in ("auto", "same", None) and all_rows * (1 + 3 * steps) <= round_work:
        report = update = None
    elif report == "auto" and grouped and all_rows <= round_work:
        report, round_work = None, 2 * (round_work - all_rows)
    if update == "auto":
        update = limit(round_work / 2 / (3 * steps * m * RANDOM_ACCESS), MIN_ROWS[0], max_rows[0])
    if report == "same":
        report = update
    elif report == "auto":
        report = limit(round_work / 2 / (m * RANDOM_ACCESS), MIN_ROWS[1], max_rows[1])
    report_rows, update_rows = (
        all_rows if rows is None else RANDOM_ACCESS * m * min(rows, largest) for rows in (report, update)
    )
    affordable = min(max(int(work / (report_rows + 3 * steps * update_rows)), min_rounds), MAX_ROUNDS)
    noisy = report is not None
    memory = choose_memory(sampling.memory, methods, all_take_part=all_take_part, noisy=noisy, can_repeat=True)
    exact = all_take_part and not noisy
    report_rows *= 1 if memory is None else memory.values_a_report
    choice = choose_first_restart(
        problem.start,
        affordable if rounds is None else rounds,
        may_end=rounds is None,
        exact=exact,
        jumps=problem.constraint_surrogate is not None,
        noisy=noisy,
        evaluation_cost=None if exact else float(clients.sizes.sum()) / (report_rows + 3 * steps * update_rows),
    )
    sampling = replace(sampling, batch_size=update, value_batch_size=report, memory=memory)
    return Tuned(choice, sampling, replace(compute, group_by_size=grouped and not noisy))


def has_layers(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether parameters of these shapes are those of a network: two or more have at least two dimensions."""
    return sum(len(shape) >= 2 for shape in shapes) >= 2


def choose_first_restart(
    start: Any,
    rounds: int,
    *,
    may_end: bool,
    exact: bool,
    jumps: bool = False,
    noisy: bool = False,
    evaluation_cost: float | None = None,
) -> Choice:
    """Choose the number of rounds and the step size of the first restart; ``start`` are the initial parameters.

    ``noisy`` is True if reports are on sampled rows. ``evaluation_cost`` is the cost of an evaluation in rounds; None
    if it is negligible.
    """
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(start)]
    shortest = MIN_NOISY_RESTART_ROUNDS if noisy else MIN_RESTART_ROUNDS
    length = max(shortest, rounds // (LAYERED_RESTARTS if has_layers(shapes) else RESTARTS))
    choice = Choice(rounds, may_end, length, 0.0, exact, chosen_for=None if may_end else rounds, jumps=jumps)
    if evaluation_cost is not None and choice.count_evaluations() * evaluation_cost > EVALUATION_SHARE * rounds:
        affordable = int((EVALUATION_SHARE * rounds / evaluation_cost - 1) / ANSWERS) + 1
        restarts = min(max(MIN_RESTARTS, affordable), MAX_RESTARTS)
        length = max(length, int(rounds / sum(GROWTH**i for i in range(restarts))))
        choice = replace(choice, first_length=length, frugal=True)
    largest = max(float(np.abs(np.asarray(leaf)).max(initial=0)) for leaf in jax.tree.leaves(start))
    step = min(max(2 * FIRST_LENGTH / length, MIN_FIRST_STEP), MAX_FIRST_STEP) * max(1.0, largest)
    step *= math.sqrt(MIN_PARAMETERS / max(MIN_PARAMETERS, count_parameters(start)))
    return replace(choice, first_step=step * (JUMP_FACTOR if jumps else 1.0))


def choose_memory(
    setting: Any, methods: Sequence[Method], *, all_take_part: bool, noisy: bool, can_repeat: bool
) -> Memory | None:
    """Return the server's memory: ``setting``, or if it is "auto", the one that suits methods that share it.

    Automatic methods have a memory unless every client reports on all its rows in every round, or the method itself
    keeps account of its clients. Others have one if they are robust and only some clients take part: outliers show
    among all clients. ``can_repeat`` is True if clients can report at two iterates on the same rows.
    """
    if setting != "auto":
        return setting
    is_robust = any(method.robust is not None for method in methods)
    smoothed = Memory(smoothing=SMOOTHING if noisy else 0.0)
    if methods[0].step_size is not None:
        return smoothed if is_robust and not all_take_part else None
    if (all_take_part and not noisy) or any(method.compares or method.draws_clients for method in methods):
        return None
    return Memory(corrected=True) if noisy and can_repeat and not is_robust else smoothed


def choose_for_federation(federation: Federation, rounds: int | None, memory: Memory | None) -> Choice:
    """Return the settings of an auto-tuned run of a federation. Default of ``rounds``: ``FEDERATION_ROUNDS``."""
    oracle, cost = federation.oracle, None
    if not oracle.reports_full_data and oracle.total_rows is not None:
        values, gradients = oracle.cost(oracle.total_rows * oracle.participants / oracle.client_count)
        values *= 1 if memory is None else memory.values_a_report
        cost = float(oracle.total_rows / (values + 3 * gradients))
    return choose_first_restart(
        federation.start,
        FEDERATION_ROUNDS if rounds is None else rounds,
        may_end=rounds is None,
        exact=oracle.reports_full_data,
        jumps=oracle.has_surrogate,
        noisy=oracle.report_batch_size is not None,
        evaluation_cost=cost,
    )


def default_alpha(clients: int, tolerance: float) -> float:
    """Return α = 10·max(1, ln n)/ε: the softmax mean is then at most ε/10 below the maximum over n clients."""
    if tolerance <= 0:
        raise ValueError("alpha must be given if the tolerance is 0")
    return 10 * max(1.0, math.log(clients)) / tolerance
