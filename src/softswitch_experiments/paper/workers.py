"""Processes that run experiments: started, handed one experiment after another, and ended."""

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
from softswitch_experiments.paper.outputs import Settings, Written, write

THREADS = "NPROC"
"""XLA takes this many threads, and so do our sweeps."""
PATIENCE = 5.0
"""Seconds until a process that was asked to end is made to."""


@dataclass(frozen=True)
class Failed:
    """An experiment that raised an error, or whose process ended; ``reason`` says how."""

    name: str
    reason: str


@dataclass(frozen=True)
class Order:
    """An experiment to run, with all that its process has to know. It is found by name in ``place.EXPERIMENTS``."""

    place: str
    name: str
    scale: Scale
    about: Settings
    out: Path

    @property
    def experiment(self) -> Experiment:
        """The experiment itself."""
        found: Experiment = import_module(self.place).EXPERIMENTS[self.name]
        return found


def carry_out(orders: Iterable[Order], interrupted: threading.Event) -> Iterator[Written | Failed]:
    """Run experiments one after another in this process, and write none of them once it was interrupted.

    An experiment's figure is drawn while the next ones run: drawing is Python's work, the rest mostly XLA's.
    """
    waiting: deque[tuple[str, Future[Written]]] = deque()
    with ThreadPoolExecutor(1) as writer:
        for order in orders:
            experiment = order.experiment
            began = time.perf_counter()
            try:
                outcome = experiment.run(order.scale)
            except Exception:
                yield Failed(order.name, traceback.format_exc())
                continue
            seconds = time.perf_counter() - began
            if interrupted.is_set():
                raise KeyboardInterrupt  # a run that Ctrl-C ended early passes for one that is done
            job = writer.submit(write, experiment, order.scale, order.about, outcome, seconds, order.out)
            waiting.append((order.name, job))
            while waiting and waiting[0][1].done():
                yield _outcome(*waiting.popleft())
        while waiting:
            yield _outcome(*waiting.popleft())


def _outcome(name: str, job: Future[Written]) -> Written | Failed:
    try:
        return job.result()
    except Exception:
        return Failed(name, traceback.format_exc())


@dataclass(eq=False)
class Worker:
    """A process of its own with a JAX of its own.

    Attributes:
        process: the process.
        line: what is said over it: orders there, outcomes back, and None when all orders are carried out.
        orders: those that it has not reported on.
        began: when it took the first of these up.
    """

    process: BaseProcess
    line: Connection
    orders: list[Order] = field(default_factory=list)
    began: float = 0.0

    @classmethod
    def start(cls, threads: int) -> Worker:
        """Start one that computes with so many threads; it ends with this process, however that ends."""
        context = multiprocessing.get_context("spawn")
        line, other = context.Pipe()
        process = context.Process(target=_work, args=(other,), daemon=True)
        with _environment(THREADS, str(threads)):
            process.start()
        other.close()
        return cls(process, line)

    def hand(self, orders: list[Order]) -> None:
        """Have it carry out these orders, one after another."""
        self.orders, self.began = list(orders), time.monotonic()
        self.line.send(orders)

    def end(self) -> None:
        """End it, whatever it is doing."""
        self.line.close()
        self.process.terminate()
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(line: Connection) -> None:
    """What a worker does: carry out orders as they come, until there are no more or its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches all; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            orders = line.recv()
        except EOFError:
            return
        for outcome in carry_out(orders, threading.Event()):
            line.send(outcome)
        line.send(None)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def noticed_interrupts() -> Iterator[threading.Event]:
    """Remembers that Ctrl-C was pressed, also where something takes it for the end of a run and goes on."""
    noticed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield noticed
        return
    before = signal.getsignal(signal.SIGINT)

    def notice(number: int, frame: Any) -> None:
        noticed.set()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, notice)
    try:
        yield noticed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A variable that processes started meanwhile find set."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
