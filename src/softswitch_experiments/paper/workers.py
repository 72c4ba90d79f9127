"""Worker processes that run experiments."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from softswitch_experiments.paper.experiment import Experiment, Scale
from softswitch_experiments.paper.outputs import Saved, Settings, write_outputs

THREADS = "NPROC"
"""Environment variable from which XLA and the sweeps read their number of threads."""
GRACE_SECONDS = 5.0
"""Time between asking a process to end and killing it."""


@dataclass(frozen=True)
class Failed:
    """An experiment that raised an error, or whose process ended."""

    name: str
    reason: str


@dataclass(frozen=True)
class Job:
    """An experiment to run. The process finds it by name in ``EXPERIMENTS`` of ``module``."""

    module: str
    name: str
    scale: Scale
    settings: Settings
    out: Path

    @property
    def experiment(self) -> Experiment:
        """The experiment."""
        return import_module(self.module).EXPERIMENTS[self.name]


def run_jobs(jobs: Iterable[Job], interrupted: threading.Event) -> Iterator[Saved | Failed]:
    """Run experiments one after another in this process. After an interrupt, nothing more is written.

    A thread writes the outputs of an experiment while the next one runs.
    """
    pending: deque[tuple[str, Future[Saved]]] = deque()
    with ThreadPoolExecutor(1) as writer:
        for job in jobs:
            experiment = job.experiment
            start = time.perf_counter()
            try:
                outcome = experiment.run(job.scale)
            except Exception:
                yield Failed(job.name, traceback.format_exc())
                continue
            seconds = time.perf_counter() - start
            if interrupted.is_set():
                raise KeyboardInterrupt  # a solver returns early on Ctrl-C, as if it had finished
            future = writer.submit(write_outputs, experiment, job.scale, job.settings, outcome, seconds, job.out)
            pending.append((job.name, future))
            while pending and pending[0][1].done():
                yield _get_outcome(*pending.popleft())
        while pending:
            yield _get_outcome(*pending.popleft())


def _get_outcome(name: str, future: Future[Saved]) -> Saved | Failed:
    try:
        return future.result()
    except Exception:
        return Failed(name, traceback.format_exc())


@dataclass(eq=False)
class Worker:
    """A worker process."""

    process: BaseProcess
    connection: Connection  # carries jobs to the process, outcomes back, and None when all jobs are done
    jobs: list[Job] = field(default_factory=list)  # jobs without an outcome yet
    start_time: float = 0.0  # when the first of them was started

    @classmethod
    def start(cls, threads: int) -> Worker:
        """Start a process that computes with this many threads, and that ends with this process."""
        context = multiprocessing.get_context("spawn")
        connection, remote = context.Pipe()
        process = context.Process(target=_work, args=(remote,), daemon=True)
        with _environment(THREADS, str(threads)):
            process.start()
        remote.close()
        return cls(process, connection)

    def assign(self, jobs: list[Job]) -> None:
        """Send jobs, which the process runs one after another."""
        self.jobs, self.start_time = list(jobs), time.monotonic()
        self.connection.send(jobs)

    def stop(self) -> None:
        """End the process."""
        self.connection.close()
        self.process.terminate()
        self.process.join(GRACE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent handles it
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    while True:
        try:
            jobs = connection.recv()
        except EOFError:
            return
        for outcome in run_jobs(jobs, threading.Event()):
            connection.send(outcome)
        connection.send(None)


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def watch_interrupts() -> Iterator[threading.Event]:
    """Yield an event that is set on Ctrl-C, even if the running code handles the interrupt."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    previous = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        interrupted.set()
        if callable(previous):
            previous(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for processes that are started in the block."""
    previous = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if previous is None:
            del os.environ[name]
        else:
            os.environ[name] = previous
