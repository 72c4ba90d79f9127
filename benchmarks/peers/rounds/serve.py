"""What the scripts have in common: the work from a file, orders as lines of JSON, answers likewise.

A script is started once, does as it is told, and waits for its next turn. Only NumPy is imported here: the file is used
under every peer's Python.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np

Arrays = dict[str, np.ndarray]
Watch = Callable[[Any], bool]


def versions(*packages: str) -> dict[str, str]:
    """What is installed of these packages."""
    return {name: version(name) for name in packages}


class Clock:
    """Seconds since it was made, without those that it was stopped for."""

    def __init__(self) -> None:
        self._began, self._left_out = time.perf_counter(), 0.0

    @property
    def seconds(self) -> float:
        """Counted so far."""
        return time.perf_counter() - self._began - self._left_out

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """For looks at a model that are no part of the work."""
        began = time.perf_counter()
        yield
        self._left_out += time.perf_counter() - began


class Work:
    """What is to be done.

    Attributes:
        model: "logistic", "mlp" or "cnn".
        clients: n.
        participants: m, clients in a round.
        steps: E, local steps.
        batch: B, rows of a step.
        step_size: of the local steps.
        start: the first parameters by name.
        x: the rows, client by client: (n, rows, …).
        y: their labels: (n, rows).
        test_x: rows to judge a model by; none where there are none.
        test_y: their labels.
    """

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        told = json.loads(str(arrays.pop("told")))
        self.model: str = told["model"]
        self.participants: int = told["participants"]
        self.steps: int = told["steps"]
        self.batch: int = told["batch"]
        self.step_size: float = told["step_size"]
        self.x, self.y = arrays.pop("x"), arrays.pop("y")
        self.test_x, self.test_y = arrays.pop("test_x"), arrays.pop("test_y")
        self.clients, self.rows = self.y.shape
        self.start: Arrays = {name.removeprefix("start."): array for name, array in arrays.items()}

    def generator(self, seed: int) -> np.random.Generator:
        """For draws of clients and rows."""
        return np.random.default_rng(seed)


class Peer(Protocol):
    """What a script offers."""

    versions: dict[str, str]

    def train(self, rounds: int, whole: bool, seed: int, watch: Watch | None, every: int) -> tuple[Arrays, float]:
        """Rounds from the start.

        Args:
            rounds: how many at most.
            whole: every local step takes all rows of the client, and every client takes part: nothing is drawn.
            seed: of the draws.
            watch: told the parameters now and then, off the clock; True ends the run.
            every: so many rounds from one look to the next.

        Returns:
            The parameters in the end, and the seconds that the rounds took.
        """
        ...

    def predict(self, params: Any, x: np.ndarray) -> np.ndarray:
        """The labels that a model gives to rows."""
        ...


def serve(make: Callable[[Work, str], Peer]) -> None:
    """Do what the lines of the standard input say, and answer each with a line.

    Args:
        make: the peer, from the work and the word that follows it on the command line.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever libraries print is not an answer
    work = Work(sys.argv[1])
    peer = make(work, sys.argv[2] if len(sys.argv) > 2 else "")
    for line in sys.stdin:
        answers.write(json.dumps(answer(peer, work, json.loads(line))) + "\n")
        answers.flush()


def answer(peer: Peer, work: Work, order: dict[str, Any]) -> dict[str, Any]:
    """One order's answer."""
    what = order.pop("do")
    if what == "check":
        params, _ = peer.train(1, True, 0, None, 1)
        return {"params": {name: np.asarray(array).tolist() for name, array in params.items()}}
    if what == "time":
        _, seconds = peer.train(order["rounds"], False, order["seed"], None, 1)
        return {"seconds": seconds, "updates": order["rounds"] * work.participants}
    if what == "race":
        return race(peer, work, **order)
    if what == "versions":
        return {"versions": peer.versions}
    raise ValueError(f"no such order: {what}")


def race(peer: Peer, work: Work, accuracy: float, rounds: int, every: int, seed: int) -> dict[str, Any]:
    """Rounds until a look finds the accuracy on the test rows."""
    seen: list[float] = []

    def watch(params: Any) -> bool:
        seen.append(float((peer.predict(params, work.test_x) == work.test_y).mean()))
        return seen[-1] >= accuracy

    _, seconds = peer.train(rounds, False, seed, watch, every)
    return {"seconds": seconds, "rounds": every * len(seen), "accuracy": seen[-1] if seen else 0.0, "seen": seen}
