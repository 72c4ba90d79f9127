"""Rates of decisions: which stand-in, how far from the best there is, and beside Fairlearn.

    python -m benchmarks.rates stand-ins     which smooth function to descend on
    python -m benchmarks.rates reference     two features, against the best of all directions
    python -m benchmarks.rates milp          false alarms, against a mixed-integer program
    python -m benchmarks.rates fairlearn     gaps of decisions, accuracy at the worst client

Each takes ``--quick``: the smaller tables only. Everything of softswitch is left to choose itself. What it chooses by,
and the stand-ins, were tried out on the tables in ``TUNED``; the others' results chose nothing.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize
from sklearn.linear_model import LogisticRegression

import softswitch as ss
from benchmarks import flat
from benchmarks.rates_by_milp import fewest_false_alarms
from benchmarks.tables.cases import Case
from softswitch.problem import rates
from softswitch.tables.constraints import build_problem

SMALL = ("cancer", "attrition", "resume", "digits")
ONLY: list[str] = []
"""The tables that were asked for; none: all."""
TUNED = ("adult", "attrition", "cancer", "churn", "loans", "star", "women")
STAND_IN_CASES = (
    Case("cancer", "miss-rate", 0.05),
    Case("cancer", "false-alarm-rate", 0.05),
    Case("cancer", "error-rate", 0.08),
    Case("loans", "miss-rate", 0.2),
    Case("star", "miss-rate", 0.3),
    Case("attrition", "decision-opportunity", 0.1),
    Case("women", "decision-parity", 0.05),
    Case("adult", "decision-parity", 0.05),
)
TEMPERATURES = (1.0, 0.3, 0.1)
REFERENCE_CASES = (
    Case("cancer", "miss-rate", 0.05),
    Case("cancer", "miss-rate", 0.1),
    Case("cancer", "false-alarm-rate", 0.05),
    Case("attrition", "miss-rate", 0.3),
    Case("attrition", "false-alarm-rate", 0.3),
    Case("churn", "miss-rate", 0.3),
    Case("loans", "miss-rate", 0.2),
    Case("star", "miss-rate", 0.3),
    *(Case(table, "miss-rate", 0.2) for table in ("birds", "crashes", "digits", "exam", "growth", "language", "votes")),
    *(Case(table, "false-alarm-rate", 0.2) for table in ("crashes", "digits", "votes")),
)
MILP_CASES = (("cancer", 0.05, 4), ("cancer", 0.1, 4), ("digits", 0.2, 2))
"""A table, the bound on misses, and how many of its clients: more rows take a mixed-integer program too long."""
MILP_SECONDS = 300.0
DIRECTIONS, FINER = 720, 4
"""Directions that are tried in the plane, and how often the best of them is looked at more closely."""
FAIR_CASES = (
    Case("attrition", "decision-opportunity", 0.1),
    Case("women", "decision-parity", 0.05),
    Case("adult", "decision-parity", 0.05),
    Case("resume", "decision-parity", 0.02),
    Case("chemistry", "decision-opportunity", 0.1),
    Case("stops", "decision-parity", 0.05),
    Case("wages", "decision-parity", 0.1),
    Case("cancer", "error-rate", 0.08),
    Case("digits", "error-rate", 0.08),
    Case("exam", "error-rate", 0.3),
)


def solved(problem: ss.Problem, clients: ss.ClientData, tolerance: float) -> tuple[ss.Result, float]:
    """The run with nothing set but the tolerance, and its seconds."""
    began = time.perf_counter()
    result = flat.solve(problem, clients, ss.Automatic(tolerance=tolerance), eval_every=0, progress=False)
    return result, time.perf_counter() - began


# Which stand-in


Wrong = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def candidates() -> dict[str, tuple[Wrong, Callable[..., Any]]]:
    """Stand-ins for "decided wrongly" by the margin, and for "decided positive" by the score."""
    found: dict[str, tuple[Wrong, Callable[..., Any]]] = {
        "logistic loss; score": (_mean_of(lambda margin: jax.nn.softplus(-margin)), lambda score: score),
        "hinge; clipped score": (
            _mean_of(lambda margin: jnp.maximum(0, 1 - margin)),
            lambda score: jnp.clip((1 + score) / 2, 0, 1),
        ),
    }
    for width in TEMPERATURES:
        found[f"sigmoid, temperature {width:g}"] = (_mean_of(partial(_step, -1 / width)), partial(_step, 1 / width))
    found["as shipped"] = (rates.nearest_error_loss, rates.soft_positive)
    return found


def _mean_of(loss: Callable[[jax.Array], jax.Array]) -> Wrong:
    return lambda margin, wrong, weights: ss.mean_over(loss(margin), weights)


def _step(factor: float, values: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(factor * values)


def compare_stand_ins(quick: bool) -> None:
    """F of every stand-in on every case; in brackets where the rate is not met."""
    print("| case | bound | " + " | ".join(candidates()) + " |")
    for case in _some(STAND_IN_CASES, quick):
        told = []
        for wrong, positive in candidates().values():
            # The functions are made once for a score, and look these up when they are traced.
            rates._error_rate.cache_clear()
            rates._gap.cache_clear()
            with patch.object(rates, "nearest_error_loss", wrong), patch.object(rates, "soft_positive", positive):
                result, _ = solved(*case.make(), case.tolerance)
            told.append(f"{result.worst_objective:.4f}" if result.status.ok else f"(G {result.worst_constraint:.3f})")
        print(f"| {case.name} | {case.tolerance:g} | " + " | ".join(told) + " |", flush=True)


# Against the best of all directions on two features


class Plane(NamedTuple):
    """Two features, signed so that the rate is that of misses: scores are to be large on ``kept``, small on ``low``."""

    kept: list[np.ndarray]
    low: list[np.ndarray]

    def best(self, angle: float, allowed: list[int]) -> float:
        """The smallest F with this direction: the threshold is as high as the rates allow, and only the scale is free.

        F falls with the threshold and is convex in the scale; at a scale of 0 it is ln 2.
        """
        direction = np.array([np.cos(angle), np.sin(angle)])
        limits = [np.partition(rows @ direction, k)[k] for rows, k in zip(self.kept, allowed, strict=True)]
        heights = [rows @ direction - min(limits) for rows in self.low]

        def worst(log_scale: float) -> float:
            return max(float(np.logaddexp(0, np.exp(log_scale) * one).mean()) for one in heights)

        return min(float(np.log(2)), float(optimize.minimize_scalar(worst, bounds=(-7, 7), method="bounded").fun))


def best_in_plane(plane: Plane, tolerance: float) -> float:
    """F of the best logistic regression on two features with every client's rate at most the tolerance."""
    allowed = [int(np.floor(tolerance * len(rows) + 1e-9)) for rows in plane.kept]
    angles = np.linspace(0, 2 * np.pi, DIRECTIONS, endpoint=False)
    values = [plane.best(angle, allowed) for angle in angles]
    width = angles[1]
    for _ in range(FINER):
        nearest = angles[np.argsort(values)[:5]]
        angles = np.concatenate([angle + np.linspace(-width, width, 41) for angle in nearest])
        values = [plane.best(angle, allowed) for angle in angles]
        width /= 20
    return min(values)


def against_reference(quick: bool) -> None:
    """F and the largest rate, beside the best that any direction, scale and threshold have."""
    print("| case, two features | bound | rate reached | F | best F | above it | seconds |")
    for case in _some(REFERENCE_CASES, quick):
        columns, client = case.columns()
        columns["x"] = two_features(columns["x"], columns["y"])
        made = build_problem(case.kind, 2)
        result, seconds = solved(
            made.problem, ss.ClientData.from_arrays(columns, client, strata=made.strata), case.tolerance
        )
        sign = 1 if case.kind == "miss-rate" else -1
        bounded = columns["y"] == (1 if sign > 0 else 0)
        parts = [
            [sign * columns["x"][(client == one) & rows].astype(float) for one in np.unique(client)]
            for rows in (bounded, ~bounded)
        ]
        kept, low = ([rows for rows in part if len(rows)] for part in parts)
        best = best_in_plane(Plane(kept, low), case.tolerance)
        met = "" if result.status.ok else " (not met)"
        print(
            f"| {case.name} | {case.tolerance:g} | {result.worst_constraint:.4f}{met} | {result.worst_objective:.4f} | "
            f"{best:.4f} | {result.worst_objective / best - 1:+.1%} | {seconds:.0f} |",
            flush=True,
        )


def against_milp(quick: bool) -> None:
    """The largest false-alarm rate at a client, beside the smallest there is: what softswitch makes small is a loss."""
    print("| case, two features | rows | bound | miss rate reached | false alarms | fewest | proved | seconds |")
    for table, tolerance, clients in MILP_CASES[:1] if quick else MILP_CASES:
        columns, client = Case(table, "miss-rate", tolerance).columns()
        kept = np.isin(client, np.unique(client)[:clients])
        columns = {name: column[kept] for name, column in columns.items()}
        client, columns["x"] = client[kept], two_features(columns["x"], columns["y"])
        made = build_problem("miss-rate", 2)
        data = ss.ClientData.from_arrays(columns, client, strata=made.strata)
        result, _ = solved(made.problem, data, tolerance)
        alarms = build_problem("false-alarm-rate", 2).problem.constraint
        reached = ss.evaluate(ss.Problem(made.problem.objective, alarms, result.params), data, result.params)[1].max()
        began = time.perf_counter()
        fewest = fewest_false_alarms(columns["x"].astype(float), columns["y"], client, tolerance, MILP_SECONDS)
        met = "" if result.status.ok else " (not met)"
        print(
            f"| {table}, {clients} clients | {len(client)} | {tolerance:g} | {result.worst_constraint:.4f}{met} | "
            f"{reached:.4f} | {fewest.rate:.4f} | {fewest.bound:.4f} | {time.perf_counter() - began:.0f} |",
            flush=True,
        )


def two_features(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The two columns that go along with the label most."""
    centred, label = x - x.mean(axis=0), y - y.mean()
    along = np.abs(centred.T @ label) / np.maximum(np.linalg.norm(centred, axis=0), 1e-12)
    return x[:, np.argsort(-along)[:2]]


# Beside Fairlearn


def beside_fairlearn(quick: bool) -> None:
    """Accuracy at the worst client and the largest gap of decisions at any client, for each method."""
    print("| case | bound | method | largest gap or rate | accuracy, worst client | accuracy, all rows | seconds |")
    for case in _some(FAIR_CASES, quick):
        columns, client = case.columns()
        columns["x"] = columns["x"].astype(float)  # Fairlearn keeps the features' precision, and fails at single
        for name, decide in METHODS.items():
            began = time.perf_counter()
            chance = decide(case, columns, client)
            gap, worst, mean = judged(case, columns, client, chance)
            kept = "" if gap <= case.tolerance + 1e-6 else " (above)"
            print(
                f"| {case.name} | {case.tolerance:g} | {name} | {gap:.4f}{kept} | {worst:.4f} | {mean:.4f} | "
                f"{time.perf_counter() - began:.0f} |",
                flush=True,
            )


def judged(case: Case, columns: dict[str, np.ndarray], client: np.ndarray, chance: np.ndarray) -> tuple[float, ...]:
    """The largest gap or rate, the worst client's accuracy and that of all rows, of decisions by their chances."""
    right = np.where(columns["y"] == 1, chance, 1 - chance)
    if case.kind == "error-rate":
        accuracy = [right[client == one].mean() for one in np.unique(client)]
        return 1 - min(accuracy), min(accuracy), right.mean()
    counts = columns["y"] == 1 if case.kind == "decision-opportunity" else np.ones(len(chance), bool)
    gaps, accuracy = [0.0], []
    for one in np.unique(client):
        mine = client == one
        accuracy.append(right[mine].mean())
        sides = [chance[mine & counts & (columns["group"] == group)] for group in (0, 1)]
        if all(len(side) for side in sides):
            gaps.append(abs(sides[0].mean() - sides[1].mean()))
    return max(gaps), min(accuracy), right.mean()


def _by_softswitch(case: Case, columns: dict[str, np.ndarray], client: np.ndarray) -> np.ndarray:
    result, _ = solved(*case.make(), case.tolerance)
    (layer,) = result.params
    score = columns["x"] @ np.asarray(layer["w"])[:, 0] + np.asarray(layer["b"])
    return (score > 0).astype(float)


def _by_reduction(case: Case, columns: dict[str, np.ndarray], client: np.ndarray) -> np.ndarray:
    """Exponentiated gradient with the gap bounded at every client, the clients being its control feature."""
    from fairlearn import reductions

    told: dict[str, Any] = {"sensitive_features": client}
    if case.kind == "error-rate":  # each client is a group, and its error rate has this bound
        bounded = reductions.BoundedGroupLoss(reductions.ZeroOneLoss(), upper_bound=case.tolerance)
    else:
        gaps = {
            "decision-parity": reductions.DemographicParity,
            "decision-opportunity": reductions.TruePositiveRateParity,
        }
        # It bounds each group's distance from all rows together: two groups may then be twice as far apart.
        bounded = gaps[case.kind](difference_bound=case.tolerance / 2)
        told = {"sensitive_features": columns["group"], "control_features": client}
    method = reductions.ExponentiatedGradient(LogisticRegression(C=1e6, max_iter=1000), bounded, max_iter=30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method.fit(columns["x"], columns["y"], **told)
    found = method._pmf_predict(columns["x"])
    if case.kind == "error-rate":  # each classifier's decisions, to be drawn by these weights
        return np.asarray(found[method.weights_.index].dot(method.weights_), dtype=float)
    chances: np.ndarray = found[:, 1]
    return chances


def _by_thresholds(case: Case, columns: dict[str, np.ndarray], client: np.ndarray) -> np.ndarray:
    """A threshold for each group, on all clients' rows together: it knows no clients, but sees each row's group.

    It bounds no error rate. There each client is a group, and misses are made equal: a threshold for each client.
    """
    from fairlearn.postprocessing import ThresholdOptimizer

    wanted = "demographic_parity" if case.kind == "decision-parity" else "true_positive_rate_parity"
    group = client if case.kind == "error-rate" else columns["group"]
    method = ThresholdOptimizer(
        estimator=LogisticRegression(C=1e6, max_iter=1000), constraints=wanted, predict_method="predict_proba"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        method.fit(columns["x"], columns["y"], sensitive_features=group)
        chances: np.ndarray = method._pmf_predict(columns["x"], sensitive_features=group)[:, 1]
    return chances


METHODS = {
    "softswitch": _by_softswitch,
    "Fairlearn, reduction with clients": _by_reduction,
    "Fairlearn, threshold optimiser": _by_thresholds,
}


def _some(cases: tuple[Case, ...], quick: bool) -> tuple[Case, ...]:
    if ONLY:
        return tuple(case for case in cases if case.table in ONLY)
    return tuple(case for case in cases if case.table in SMALL) if quick else cases


PARTS = {
    "stand-ins": compare_stand_ins,
    "reference": against_reference,
    "milp": against_milp,
    "fairlearn": beside_fairlearn,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="the smaller tables only")
    parser.add_argument("--only", nargs="*", default=[], help="these tables only")
    told = parser.parse_args()
    ONLY.extend(told.only)
    PARTS[told.part](told.quick)
