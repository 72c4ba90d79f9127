"""A batch of experiments: reuses saved outputs, runs the rest in several processes, and estimates the duration."""

from __future__ import annotations

import heapq
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from statistics import median
from typing import Any

from softswitch.support.files import write_json
from softswitch_experiments.paper.experiment import Experiment, Scale
from softswitch_experiments.paper.outputs import Saved, describe_settings, find_saved, read_outputs, remove_unfinished
from softswitch_experiments.paper.workers import Failed, Job, Worker, run_jobs, watch_interrupts

THREADS_PER_CORE = 2
"""Threads of all processes together per core: one thread can compile while another computes."""
POLL_SECONDS = 0.5
DURATIONS = Path(__file__).with_name("seconds.json")
"""Durations that come with the package, used until an experiment has run on this machine."""


@dataclass
class Batch:
    """Experiments that are written to ``out/<name>/``.

    Complete outputs from the same settings and sources are reused. All remaining experiments run in ``jobs`` processes,
    the longest first. Experiments that share runs share a process. A single experiment runs in this process.
    """

    experiments: Sequence[Experiment]
    out: Path  # output folder
    seeds: int | None = None  # number of seeds. Default: that of each experiment
    quick: bool = False  # run the short versions
    jobs: int | None = None  # number of processes. Default: the number of cores
    force: bool = False  # ignore saved outputs
    module: str = "softswitch_experiments.paper"  # module in whose ``EXPERIMENTS`` the processes find the experiments
    reused: tuple[Saved, ...] = field(init=False)  # outputs that are reused
    waiting: list[list[Job]] = field(init=False)  # jobs to run, by group, the longest group first

    def __post_init__(self) -> None:
        remove_unfinished(self.out)
        groups: dict[str, list[Job]] = {}
        reused: list[Saved] = []
        self._seconds: dict[str, float] = {}
        self._finished_expected = self._finished_actual = 0.0
        self._workers: list[Worker] = []
        progress = None if len(self.experiments) == 1 else False
        for experiment in self.experiments:
            scale = experiment.scale(self.seeds, self.quick, progress)
            settings = describe_settings(experiment, scale)
            saved = None if self.force else find_saved(experiment, settings, self.out)
            if saved is not None:
                reused.append(saved)
                continue
            self._seconds[experiment.name] = estimate_seconds(experiment, scale, self.out)
            group = groups.setdefault(experiment.group or experiment.name, [])
            group.append(Job(self.module, experiment.name, scale, settings, self.out))
        self.reused = tuple(reused)
        self.waiting = sorted(groups.values(), key=self._expected_seconds, reverse=True)
        cores = os.cpu_count() or 1
        self.jobs = max(1, min(self.jobs or cores, len(self.waiting)))
        self._threads = min(cores, math.ceil(THREADS_PER_CORE * cores / self.jobs))

    @property
    def names(self) -> list[str]:
        """Names of the experiments to run, in this order."""
        return [job.name for group in self.waiting for job in group]

    @property
    def running(self) -> list[str]:
        """Names of the experiments that are running now."""
        return [worker.jobs[0].name for worker in self._workers if worker.jobs]

    def _expected_seconds(self, jobs: Sequence[Job]) -> float:
        return sum(self._seconds[job.name] for job in jobs)

    def remaining(self) -> float:
        """Return the seconds left: the expected ones, corrected by how long finished experiments really took."""
        pace = self._finished_actual / self._finished_expected if self._finished_expected else 1.0
        now = time.monotonic()
        running = [
            max(0.0, self._expected_seconds(worker.jobs) * pace - (now - worker.start_time))
            for worker in self._workers
            if worker.jobs
        ]
        waiting = [self._expected_seconds(group) * pace for group in self.waiting]
        return estimate_makespan(waiting, self.jobs or 1, running)

    def run(self) -> Iterator[Saved | Failed | None]:
        """Run the experiments, and yield outcomes as they arrive, or None if only time has passed.

        A failure does not stop the batch. No process is left when this ends.
        """
        if len(self.names) == 1:
            (jobs,) = self.waiting
            self.waiting = []
            with watch_interrupts() as interrupted:
                yield from run_jobs(jobs, interrupted)
            return
        try:
            self._workers = [Worker.start(self._threads) for _ in range(min(self.jobs or 1, len(self.waiting)))]
            for worker in self._workers:
                worker.assign(self.waiting.pop(0))
            while self._workers:
                ready = wait([worker.connection for worker in self._workers], POLL_SECONDS)
                if not ready:
                    yield None
                for worker in [worker for worker in self._workers if worker.connection in ready]:
                    yield from self._receive(worker)
        finally:
            for worker in self._workers:
                worker.stop()
            self._workers = []
            remove_unfinished(self.out)

    def _receive(self, worker: Worker) -> Iterator[Saved | Failed]:
        """Yield the outcome that a worker sent, or assign the next group if it has finished its jobs."""
        try:
            outcome = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            yield from self._replace(worker)
            return
        if outcome is not None:
            worker.jobs = [job for job in worker.jobs if job.name != outcome.name]
            worker.start_time = time.monotonic()
            if isinstance(outcome, Saved):
                self._finished_expected += self._seconds[outcome.name]
                self._finished_actual += outcome.seconds
            yield outcome
        elif self.waiting:
            worker.assign(self.waiting.pop(0))
        else:
            self._workers.remove(worker)
            worker.stop()

    def _replace(self, worker: Worker) -> Iterator[Failed]:
        """Report the running experiment of a worker that died, and start another worker."""
        self._workers.remove(worker)
        worker.stop()
        code = worker.process.exitcode
        cause = f"by signal {-code}; is there enough memory?" if code and code < 0 else f"with code {code}"
        if worker.jobs:
            failed, *rest = worker.jobs
            yield Failed(failed.name, f"its process was ended {cause}")
            if rest:
                self.waiting.insert(0, rest)
        if self.waiting:
            another = Worker.start(self._threads)
            self._workers.append(another)
            another.assign(self.waiting.pop(0))


def load_durations() -> dict[str, dict[str, float]]:
    """Return the seconds that come with the package, by version ("full" or "quick") and experiment."""
    return json.loads(DURATIONS.read_text(encoding="utf-8"))


def estimate_seconds(experiment: Experiment, scale: Scale, out: Path) -> float:
    """Return the expected duration: from earlier outputs in ``out``, or from the table."""
    earlier = read_outputs(out, experiment.name)
    if earlier is not None and earlier.get("quick") == scale.quick and earlier.get("seconds"):
        return float(earlier["seconds"]) * (1 if scale.quick else scale.seeds / earlier["seeds"])
    table = load_durations()["quick" if scale.quick else "full"]
    seconds = table.get(experiment.name) or (median(table.values()) if table else 60.0)
    return seconds * (1 if scale.quick else scale.seeds / experiment.seeds)


def estimate_makespan(seconds: Iterable[float], jobs: int, running: Sequence[float] = ()) -> float:
    """Return when ``jobs`` processes finish tasks that they take in this order; ``running``: seconds still to run."""
    free = sorted([*running, *[0.0] * max(0, jobs - len(running))])
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def record_durations(outputs: Mapping[str, Mapping[str, Any]]) -> None:
    """Update the table that comes with the package from the outputs of experiments."""
    table = load_durations()
    for name, output in outputs.items():
        table["quick" if output["quick"] else "full"][name] = output["seconds"]
    write_json(DURATIONS, table)


def format_duration(seconds: float) -> str:
    """Return a duration as text: 40 s, 12 min, 1 h 5 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
