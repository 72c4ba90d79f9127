"""What a peer's script is handed, and what it hands back: clients' rows, and parameters round by round."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import numpy as np

LEVEL, OFFSET = 0.75, 0.3
"""Of both constraints: mean log(1 + exp(c·w)) − LEVEL, and mean h·w − OFFSET. The objective is half the mean square."""


class CaseFile:
    """Six clients with least squares and two constraints each, all rows in every step.

    Attributes:
        clients: the columns a, b, c and h of each.
        rounds: how many.
        step: η.
        tolerance: ε.
        numbers: the method's own.
    """

    def __init__(self, path: str) -> None:
        with np.load(path) as held:
            self.clients = [
                {name: held[name][held["owner"] == i] for name in "abch"} for i in range(int(held["owner"].max()) + 1)
            ]
            self.rounds, self.step, self.tolerance = int(held["rounds"]), float(held["step"]), float(held["tolerance"])
            self.numbers = {name: float(value) for name, value in zip(held["names"], held["values"], strict=True)}
            self.parameters = held["a"].shape[1]


PeerMethod = Callable[[CaseFile], list[np.ndarray]]


def answer(methods: dict[str, PeerMethod]) -> None:
    """Play the method of the command line's last word on the file of its first, and print all iterates."""
    path, name = sys.argv[1:]
    print(json.dumps([np.asarray(w, float).tolist() for w in methods[name](CaseFile(path))]))
