"""What a curious server reads of one patient: a run over Flower's messages is listened to, and attacked.

    python examples/reconstruction.py           every mode
    python examples/reconstruction.py --quick   fewer rounds

Seven hospitals share a classifier of tumours. Misses are bounded, so in some rounds every hospital descends on the loss
of its malignant rows. The first hospital has a single such row x. Two ways to read it:

- From a direction. The gradient of the loss, −σ(−wᵀx)·x, is the row times a number. Local steps go along it, so the
  direction after any number of them is too; the constant feature says which number.
- From the reported numbers. The loss is g = log(1 + exp(−wᵀx)), so every report tells wᵀx, and the server knows w. As
  many rounds as there are features, with w far enough apart, are a system of equations for x.

The server keeps to the protocol: it only looks at what it is sent.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message

from softswitch import RecordPrivacy, SoftmaxSGM
from softswitch.flower import (
    ClientPolicy,
    InProcessGrid,
    JaxClient,
    PrivateClient,
    SecureAggregation,
    SwitchingStrategy,
    client_app,
    initial_arrays,
)
from softswitch.flower import messages as wire
from softswitch.flower.secure_aggregation import MASKED
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

HOSPITALS, BENIGN, MALIGNANT = 7, 40, 20
LOCAL_STEPS, STEP = 10, 0.5
TELLING = 1e-4
"""Smaller losses, and directions in which w differs by less than this share, drown in rounding."""


@dataclass(frozen=True)
class Mode:
    """A way to run, and what is said of it.

    Attributes:
        name: its name.
        policy: what every hospital allows.
        settings: those of ``SwitchingStrategy`` that differ.
        privacy: what every hospital's rows are kept private by; None: nothing.
    """

    name: str
    policy: ClientPolicy = field(default_factory=ClientPolicy.for_simulations)
    settings: dict[str, Any] = field(default_factory=dict)
    privacy: RecordPrivacy | None = None


NAMES = [f"hospital {i}" for i in range(HOSPITALS)]
SUMMED = {"secure": SecureAggregation(min_clients=4), "clip_norm": 10.0, "names": NAMES, "simulation": True}
WITHOUT_FIRST = SUMMED | {"names": NAMES[1:]}  # all clients must take part, and the first refuses by the default policy
UNCOUNTED: dict[str, Any] = {"max_rounds": None, "max_evaluations": None}
"""The demonstration may run any number of times."""
MODES = (
    Mode("everything is answered"),
    Mode("no class of fewer than 10 rows (the default)", ClientPolicy(**UNCOUNTED)),
    Mode("everything is answered, with secure aggregation", settings=SUMMED),
    Mode(
        "no small class, and secure aggregation",
        ClientPolicy(min_secure_clients=4, **UNCOUNTED),
        settings=WITHOUT_FIRST,
    ),
    Mode("everything is answered, with noise: ε = 8", privacy=RecordPrivacy(epsilon=8.0, delta=1e-5)),
)


def hospitals() -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
    """The hospitals' rows, and the single malignant row of the first."""
    data = breast_cancer(1).train.rows.columns
    x, y = (np.asarray(data[name]) for name in ("x", "y"))
    benign, malignant = (np.flatnonzero(y == label) for label in (0, 1))
    found = []
    for i in range(HOSPITALS):
        own = benign[i * BENIGN : (i + 1) * BENIGN], malignant[i * MALIGNANT : (i + 1) * MALIGNANT]
        rows = np.concatenate([own[0], own[1] if i else own[1][:1]])
        found.append({"x": x[rows], "y": y[rows]})
    return found, x[malignant[0]]


class Listening(InProcessGrid):
    """A grid that keeps what the server is sent.

    Attributes:
        params: w of every round.
        reports: the first hospital's constraint, by round.
        directions: what hospitals answered in the second exchange, by round and hospital, masked or not.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params: dict[int, np.ndarray] = {}
        self.reports: dict[int, float] = {}
        self.directions: dict[tuple[int, int], np.ndarray] = {}

    def deliver(self, message: Message) -> Message | None:
        """As ever, and listened to."""
        reply, kind = super().deliver(message), message.metadata.message_type
        hospital = message.metadata.dst_node_id - 100
        if kind == wire.REPORT and reply is not None:
            k = int(message.metadata.group_id)
            self.params[k] = vector(message.content[wire.PARAMS])
            if hospital == 0 and wire.VALUES in reply.content:
                self.reports[k] = wire.read_numbers(reply.content[wire.VALUES], "constraint")[0]
        if kind == wire.UPDATE and reply is not None:
            place = int(message.metadata.group_id), hospital
            for record in (wire.DIRECTION, MASKED):
                if record in reply.content:
                    self.directions[place] = vector(reply.content[record])
        return reply


def vector(record: Any) -> np.ndarray:
    """A record's arrays as one vector."""
    assert isinstance(record, ArrayRecord)
    return np.concatenate([array.numpy().reshape(-1) for array in record.values()]).astype(float)


def run(mode: Mode, rounds: int, folder: Path) -> tuple[Listening, SwitchingStrategy]:
    """A run as its server sees it; in the folder hospitals count what they told."""
    problem, (everyone, _) = breast_cancer(1).problem, hospitals()

    def factory(context: Any) -> JaxClient | PrivateClient:
        i = int(context.node_config["partition-id"])
        client = JaxClient(problem, everyone[i], name=NAMES[i], strata="y", batch_size=None)
        if mode.privacy is None:
            return client
        told = folder / f"{i}.json"
        return PrivateClient(client, mode.privacy, budget_file=told, rounds=rounds, local_steps=LOCAL_STEPS)

    grid = Listening(client_app(factory, mode.policy), HOSPITALS)
    method = SoftmaxSGM(alpha=20.0, step_size=STEP, tolerance=0.2)
    strategy = SwitchingStrategy(method, local_steps=LOCAL_STEPS, **mode.settings)
    strategy.start(grid, initial_arrays(problem.start), rounds)
    return grid, strategy


def from_directions(heard: Listening) -> Iterator[np.ndarray]:
    """Guesses at the row: the first hospital's answers, and the steps of w, each divided by its last entry.

    A step is a multiple of the weighted mean of all directions: with secure aggregation the server learns no more.
    """
    seen = [direction for (_, hospital), direction in heard.directions.items() if hospital == 0]
    seen += [heard.params[k] - heard.params[k + 1] for k in range(len(heard.params) - 1)]
    for vector_seen in seen:
        if vector_seen[-1]:
            yield vector_seen / vector_seen[-1]


def from_reports(heard: Listening) -> Iterator[np.ndarray]:
    """A guess at the row from its losses: the shortest x for which every wᵀx is as told, but for rounding."""
    told = {k: g for k, g in heard.reports.items() if TELLING < g < np.inf}
    if len(told) < 2:
        return
    w, g = np.array([heard.params[k] for k in told]), np.array(list(told.values()))
    yield np.linalg.lstsq(w, -np.log(np.expm1(g)), rcond=TELLING)[0]


def best(guesses: Iterator[np.ndarray], row: np.ndarray) -> str:
    """The smallest relative error of all guesses at the row, and the largest correlation with its features.

    Which guess is best only someone who knows the row can tell: the server does no better than this.
    """
    errors, alike = [], []
    for guess in guesses:
        errors.append(float(np.linalg.norm(guess - row) / np.linalg.norm(row)))
        alike.append(abs(float(np.corrcoef(guess[:-1], row[:-1])[0, 1])))
    return f"{min(errors):.1e}, {max(alike):.2f}" if errors else "nothing"


def main() -> None:
    """Run every mode, and say what was read."""
    parser = argparse.ArgumentParser(description="What a curious server reads of one patient.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 10 if parser.parse_args().quick else 100
    logging.disable(logging.WARNING)
    everyone, row = hospitals()
    others = np.concatenate([own["x"][own["y"] == 1] for own in everyone[1:]])
    print("How well one patient's features are read: relative error, correlation")
    print(f"guessed, the mean malignant row of all others: {best(iter([others.mean(axis=0)]), row)}")
    for mode in MODES:
        with TemporaryDirectory() as folder:
            heard, strategy = run(mode, rounds, Path(folder))
        result = strategy.result
        assert result is not None
        print(f"{mode.name}:")
        print(f"  from directions {best(from_directions(heard), row)}; from reports {best(from_reports(heard), row)}")
        print(f"  the model: F {result.worst_objective:.2f}, G {result.worst_constraint:.2f}")


if __name__ == "__main__":
    main()
