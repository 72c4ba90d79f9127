"""An audit of differential privacy: lower bounds on ε from attacks on every kind of release, against the stated ε.

An attacker knows all rows except one. Releases of the real client, with and without that row's contribution, are told
apart by their values, and by the low bits of the released floats.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import beta

import softswitch as ss
import softswitch.flower as fl
from softswitch.certification.intervals import ErrorLevels
from softswitch.methods.messages import LocalLoss
from softswitch.privacy.accounting import compute_epsilon
from softswitch.privacy.settings import NoiseLevels, Releases

DELTA, ERROR = 0.05, 0.05  # δ of the stated ε; probability that a lower bound is wrong
ROWS, FEATURES = 14, 3
NOISE = 1.0  # noise multiplier of every release
START = {"w": np.zeros(FEATURES, np.float32)}
TASK = fl.Task(round=0, seed=0, local_steps=1, step_size=0.1, switches=True)
LOW_BITS = 6


class AuditRow(NamedTuple):
    """Lower bounds on ε for one kind of release.

    Attributes:
        kind: The kind of release.
        stated: ε of one release, from the accounting.
        by_value: Lower bound from a threshold on the released value.
        by_low_bits: Lower bound from the low bits of the released float.
    """

    kind: str
    stated: float
    by_value: float
    by_low_bits: float


def mean_loss(params: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
    """Return the mean of a linear loss over rows of class 0, and its gradient."""
    rows = batch["y"] == 0
    if not rows.any():
        return -np.inf, {"w": np.zeros(FEATURES)}
    return (batch["a"] + batch["x"] @ params["w"])[rows].mean(), {"w": batch["x"][rows].mean(axis=0)}


def event_rate(params: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
    """Return the rate of an event over rows of class 1, and a gradient of zeros."""
    rows = batch["y"] == 1
    if not rows.any():
        return -np.inf, {"w": np.zeros(FEATURES)}
    return batch["event"][rows].mean(), {"w": np.zeros(FEATURES)}


def make_rows(canary: bool) -> dict[str, np.ndarray]:
    """Return rows of two classes; without the canary, the first row of each class contributes 0."""
    generator = np.random.default_rng(0)
    y = np.arange(ROWS) % 2
    x = generator.normal(size=(ROWS, FEATURES)).astype(np.float32)
    x[:, 2], a = 0, generator.uniform(0, 1, ROWS)
    event = (generator.random(ROWS) < 0.3).astype(float)
    x[0], a[0], event[1] = 0, 0, 0
    if canary:
        x[0, 2], a[0], event[1] = 1e4, 1e9, 1
    return {"x": x, "a": a, "y": y, "event": event}


def make_client(folder: Path, canary: bool, privacy: ss.RecordPrivacy) -> fl.PrivateClient:
    """Return a private client whose training and held-out rows have the canary, or not."""
    rows = make_rows(canary)
    client = fl.NumpyClient(
        mean_loss,
        event_rate,
        rows,
        START,
        name="a",
        held_out=rows,
        objective_range=(0, 1),
        constraint_range=frozenset((0, 1)),
    )
    private = fl.PrivateClient(client, privacy, budget_file=folder / f"{canary}.json", rounds=1)
    private._levels = NoiseLevels(*[privacy.noise or NOISE] * 3)
    private._budget.charge = lambda **releases: None  # type: ignore[method-assign] # the audit repeats one release
    return private


def release_report(client: fl.PrivateClient, position: int) -> float:
    """Return a reported value: the loss at position 0, the rate at 1."""
    report = client.report(START, TASK)
    return [report.objective, *report.constraint][position]


def release_direction(client: fl.PrivateClient) -> Any:
    """Return the entry of a direction to which only the canary contributes."""
    no_constraint: Any = np.zeros(1)
    return client.update(START, TASK, LocalLoss(1.0, no_constraint, 0.0, 0.0))["w"][2]


def release_evaluation(client: fl.PrivateClient) -> float:
    """Return the loss of an evaluation."""
    return client.evaluate(START).objective


def release_certificate(client: fl.PrivateClient) -> float:
    """Return the upper limit of the rate in a certificate."""
    return client.certify(START, ErrorLevels(0.05, 0.05, math.nan), [None, None])[1].upper


KINDS: dict[str, Callable[[fl.PrivateClient], float]] = {
    "rate": partial(release_report, position=1),
    "loss": partial(release_report, position=0),
    "direction": release_direction,
    "evaluation": release_evaluation,
    "certificate": release_certificate,
}


def audit(times: int, noise: float = NOISE, rate: float = 1.0) -> Iterator[AuditRow]:
    """Yield lower bounds on ε of every kind of release, from this many releases with and without the canary."""
    privacy = ss.RecordPrivacy(noise=noise, delta=DELTA, clip_value=1.0, rate=rate)
    with tempfile.TemporaryDirectory() as folder:
        clients = [make_client(Path(folder), canary, privacy) for canary in (True, False)]
        for kind, release in KINDS.items():
            present, absent = (np.array([release(client) for _ in range(times)]) for client in clients)
            sampled = 1.0 if kind in ("evaluation", "certificate") else rate
            stated = compute_epsilon(Releases(reports=1), NoiseLevels(noise, 1.0, 1.0), sampled, DELTA)
            yield AuditRow(kind, stated, bound_by_value(present, absent), bound_by_low_bits(present, absent))


def bound_by_value(present: np.ndarray, absent: np.ndarray) -> float:
    """Return a lower bound on ε from the best threshold, which is chosen on half of the releases."""
    half = len(present) // 2
    known = present[:half], absent[:half]
    thresholds = np.quantile(np.concatenate(known), np.linspace(0.01, 0.998, 200))
    best = max(thresholds, key=lambda threshold: lower_bound(*(values > threshold for values in known)))
    return lower_bound(present[half:] > best, absent[half:] > best)


def bound_by_low_bits(present: np.ndarray, absent: np.ndarray) -> float:
    """Return a lower bound on ε from the set of low bits that is more frequent with the canary on half of them."""
    bins = 2**LOW_BITS
    bits = [np.ascontiguousarray(values).view(f"u{values.itemsize}") % bins for values in (present, absent)]
    half = len(present) // 2
    counts = [np.bincount(values[:half].astype(int), minlength=bins) for values in bits]
    chosen = counts[0] > counts[1]
    return lower_bound(*(chosen[values[half:].astype(int)] for values in bits))


def lower_bound(present: np.ndarray, absent: np.ndarray) -> float:
    """Return a lower confidence limit of ε from alarms with and without the canary, by exact limits of both rates.

    (ε, δ)-privacy implies: true alarms <= e^ε · false alarms + δ.
    """
    true, false, count = int(present.sum()), int(absent.sum()), len(present)
    at_least = float(beta.ppf(ERROR / 2, true, count - true + 1)) if true else 0.0
    at_most = float(beta.ppf(1 - ERROR / 2, false + 1, count - false)) if false < count else 1.0
    return math.log(max(at_least - DELTA, 1e-12) / at_most)
