"""Many experiments: which are there already, the rest on several processes, and how long it will take."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

from softswitch_experiments.paper.durations import expected, until_the_last
from softswitch_experiments.paper.experiment import Experiment
from softswitch_experiments.paper.outputs import Settings, Written, clear_unfinished, kept, settings
from softswitch_experiments.paper.workers import Failed, Order, Worker, carry_out, noticed_interrupts

OVERLAP = 2
"""Threads of all processes together for every core: a process compiles on one of its threads while another computes."""
LOOK = 0.5
"""Seconds between two looks at the clock while experiments run."""


@dataclass
class Batch:
    """Experiments to be written into ``out/<name>/``.

    Those whose outputs are there, complete and from the same settings and sources, are kept. The others run in ``jobs``
    processes, the longest first; experiments that share runs share a process. One alone runs in this process.

    Attributes:
        experiments: which.
        out: where to.
        seeds: how many; None: each experiment's own number.
        quick: the short versions.
        jobs: how many processes; None: as many as there are cores.
        force: run also what is there already.
        place: the module in whose ``EXPERIMENTS`` processes find the experiments.
        kept: what is there already.
        waiting: what is to run, by group, the longest first.
    """

    experiments: Sequence[Experiment]
    out: Path
    seeds: int | None = None
    quick: bool = False
    jobs: int | None = None
    force: bool = False
    place: str = "softswitch_experiments.paper"
    kept: tuple[Written, ...] = field(init=False)
    waiting: list[list[Order]] = field(init=False)

    def __post_init__(self) -> None:
        clear_unfinished(self.out)
        groups: dict[str, list[Order]] = {}
        there: list[Written] = []
        self._seconds: dict[str, float] = {}
        self._done_expected = self._done_taken = 0.0
        self._workers: list[Worker] = []
        progress = None if len(self.experiments) == 1 else False
        for experiment in self.experiments:
            scale = experiment.scale(self.seeds, self.quick, progress)
            about: Settings = settings(experiment, scale)
            before = None if self.force else kept(experiment, about, self.out)
            if before is not None:
                there.append(before)
                continue
            self._seconds[experiment.name] = expected(experiment, scale, self.out)
            group = groups.setdefault(experiment.together or experiment.name, [])
            group.append(Order(self.place, experiment.name, scale, about, self.out))
        self.kept = tuple(there)
        self.waiting = sorted(groups.values(), key=self._length, reverse=True)
        cores = os.cpu_count() or 1
        self.jobs = max(1, min(self.jobs or cores, len(self.waiting)))
        self._threads = min(cores, math.ceil(OVERLAP * cores / self.jobs))

    @property
    def names(self) -> list[str]:
        """What is to run, in this order."""
        return [order.name for group in self.waiting for order in group]

    @property
    def under_way(self) -> list[str]:
        """What is running now."""
        return [worker.orders[0].name for worker in self._workers if worker.orders]

    def _length(self, group: Sequence[Order]) -> float:
        return sum(self._seconds[order.name] for order in group)

    def remaining(self) -> float:
        """Seconds until all is done: what was expected, times how far this machine was off so far."""
        now = time.monotonic()
        under_way = [max(0.0, self._length(w.orders) * self._pace - (now - w.began)) for w in self._workers if w.orders]
        rest = [self._length(group) * self._pace for group in self.waiting]
        return until_the_last(rest, self.jobs or 1, under_way)

    @property
    def _pace(self) -> float:
        """How many seconds one expected second took so far."""
        return self._done_taken / self._done_expected if self._done_expected else 1.0

    def run(self) -> Iterator[Written | Failed | None]:
        """Run what is not there. Outcomes as they come, and None where there is nothing new but the time.

        An experiment that fails does not keep the others from running. However this ends, no process is left.
        """
        if len(self.names) == 1:
            (orders,) = self.waiting
            self.waiting = []
            with noticed_interrupts() as interrupted:
                yield from carry_out(orders, interrupted)
            return
        try:
            self._workers = [Worker.start(self._threads) for _ in range(min(self.jobs or 1, len(self.waiting)))]
            for worker in self._workers:
                worker.hand(self.waiting.pop(0))
            while self._workers:
                ready = wait([worker.line for worker in self._workers], LOOK)
                if not ready:
                    yield None
                for worker in [w for w in self._workers if w.line in ready]:
                    yield from self._hear(worker)
        finally:
            for worker in self._workers:
                worker.end()
            self._workers = []
            clear_unfinished(self.out)

    def _hear(self, worker: Worker) -> Iterator[Written | Failed]:
        """Take what a worker says, and hand it the next group where it is done with its own."""
        try:
            outcome = worker.line.recv()
        except (EOFError, ConnectionResetError):
            yield from self._lost(worker)
            return
        if outcome is not None:
            self._count(worker, outcome)
            yield outcome
        elif self.waiting:
            worker.hand(self.waiting.pop(0))
        else:
            self._workers.remove(worker)
            worker.end()

    def _count(self, worker: Worker, outcome: Written | Failed) -> None:
        worker.orders = [order for order in worker.orders if order.name != outcome.name]
        worker.began = time.monotonic()
        if isinstance(outcome, Written):
            self._done_expected += self._seconds[outcome.name]
            self._done_taken += outcome.seconds

    def _lost(self, worker: Worker) -> Iterator[Failed]:
        """A process that ended by itself: what it was at has failed, what it had before it goes to another."""
        self._workers.remove(worker)
        worker.end()
        code = worker.process.exitcode
        why = f"by signal {-code}; is there enough memory?" if code and code < 0 else f"with code {code}"
        if worker.orders:
            lost, *rest = worker.orders
            yield Failed(lost.name, f"its process was ended {why}")
            if rest:
                self.waiting.insert(0, rest)
        if self.waiting:
            another = Worker.start(self._threads)
            self._workers.append(another)
            another.hand(self.waiting.pop(0))
