"""Costs and limits of secure aggregation: the cap on weights, masking, and how far many sums reveal single directions.

python -m benchmarks.secure
python -m benchmarks.secure --unmix   only the last table
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict

import softswitch.flower as fl
from softswitch import SoftmaxSGM, solve
from softswitch.flower import messages as wire
from softswitch.flower import secure_aggregation
from softswitch.flower.secure_aggregation import MASKED, TERMS, AggregationTerms, make_terms
from softswitch.methods import FallingStep
from softswitch.methods.messages import LocalLoss
from softswitch.methods.robust import cap_weights
from softswitch.oracles.options import Output
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

CLIENTS, ROUNDS, SEEDS, TIMED = 20, 1000, 5, 10
MIN_CLIENTS = (None, 3, 5, 10)
UNMIXED_CLIENTS, UNMIXED_ROUNDS, CLIP_NORM = 12, 800, 20.0
LAST_ROUNDS, RIDGES = (40, 160, 800), (0.0, *np.logspace(-10, 2, 25).tolist())


@dataclass(frozen=True, kw_only=True)
class CappedSGM(SoftmaxSGM):
    """Softmax SGM with weights of at most ``most``, as with ``SecureAggregation`` up to rounding."""

    most: float = 1.0

    def decide(self, state: Any, reports: Any) -> tuple[Any, Any]:
        """Return the decision of Softmax SGM with capped weights."""
        decision, after = super().decide(state, reports)
        cap = jnp.asarray(self.most, decision.weights.dtype)
        return cap_weights(super().decide, state, reports, decision, cap), after


def make_client(data: Any, i: int, batch_size: int | None = None, value_batch_size: int | None = None) -> fl.JaxClient:
    """Return client i of a data set, with its own rows."""
    end, size = int(np.cumsum(data.train.sizes)[i]), int(data.train.sizes[i])
    columns = {name: np.asarray(column)[end - size : end] for name, column in data.train.rows.columns.items()}
    sizes: dict[str, Any] = {"batch_size": batch_size, "value_batch_size": value_batch_size}
    return fl.JaxClient(data.problem, columns, name=str(i), strata="y", **sizes)


def app_of(data: Any, *batch_sizes: int | None) -> Any:
    """Return the app of the clients of a data set."""

    def factory(context: Any) -> fl.JaxClient:
        client = make_client(data, int(context.node_config["partition-id"]), *batch_sizes)
        client.value_rows = client.rows  # a client that reports on batches would refuse
        return client

    return fl.client_app(factory, fl.ClientPolicy.for_simulations())


def names_of(clients: int) -> list[str]:
    """Return the names of the clients."""
    return [str(i) for i in range(clients)]


def solve_with_cap(alpha: float, min_clients: int | None) -> tuple[float, float]:
    """Return mean F and G over the seeds, with weights of at most 1/``min_clients``."""
    values = []
    for seed in range(SEEDS):
        data, most = breast_cancer(CLIENTS, seed=seed), 1.0 if min_clients is None else 1 / min_clients
        method = CappedSGM(alpha=alpha, step_size=0.5, tolerance=0.1, most=most)
        result = solve(data.problem, data.train, method, rounds=ROUNDS, output=Output(average_last=0.5))
        values.append((result.worst_objective, result.worst_constraint))
    return tuple(np.mean(values, axis=0).tolist())


def time_round(min_clients: int | None) -> float:
    """Return the milliseconds of a round of all clients in one process."""
    data, settings = breast_cancer(CLIENTS), dict[str, Any]()
    if min_clients is not None:
        settings = {"clip_norm": 10.0, "secure": fl.SecureAggregation(min_clients=min_clients), "simulation": True}
    spent = []
    for rounds in (1, 1, 1 + TIMED):  # the first compiles
        method = SoftmaxSGM(alpha=20.0, step_size=0.5, tolerance=0.1)
        strategy = fl.SwitchingStrategy(method, names=names_of(CLIENTS), **settings)
        grid, began = fl.InProcessGrid(app_of(data), CLIENTS), time.perf_counter()
        strategy.start(grid, fl.initial_arrays(data.problem.start), rounds)
        spent.append(time.perf_counter() - began)
    return 1000 * (spent[2] - spent[1]) / TIMED


def time_masking(clients: int, numbers: int) -> float:
    """Return the seconds in which one client masks a direction of this many numbers."""
    contexts = [Context(1, i, {}, RecordDict(), {}) for i in range(clients)]
    names = names_of(clients)
    keys = [
        RecordDict({"round_key": secure_aggregation.create_round_key(0, name, context, None)})
        for name, context in zip(names, contexts, strict=True)
    ]
    loss: Any = LocalLoss(1.0, np.zeros((clients, 1)), 0.0, 0.0)  # type: ignore[arg-type]
    terms = make_terms(names, keys, np.full(clients, 1 / clients), loss)
    params = wire.to_record({"w": np.zeros(numbers, np.float32)})
    settings = ConfigRecord({"round": 0, "clip_norm": 10.0})

    def compute(_: LocalLoss) -> wire.Arrays:
        return {"w": np.zeros(numbers, np.float32)}

    began = time.perf_counter()
    secure_aggregation.mask_direction(compute, terms, "0", params, settings, contexts[0], 2, None)
    return time.perf_counter() - began


class ListeningGrid(fl.InProcessGrid):
    """A grid that keeps what the server of a secure aggregation knows: terms and masked directions by round."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.terms: dict[int, AggregationTerms] = {}
        self.masked: dict[int, list[np.ndarray]] = {}

    def deliver(self, message: Message) -> Message | None:
        """Deliver a message, and keep its terms and the masked direction of its reply."""
        reply = super().deliver(message)
        if message.metadata.message_type == wire.UPDATE and reply is not None and MASKED in reply.content:
            k = int(message.metadata.group_id)
            self.terms[k] = secure_aggregation.parse_terms(message.content[TERMS], 1)
            self.masked.setdefault(k, []).append(wire.from_record(reply.content[MASKED])["sum"])
        return reply


@dataclass(frozen=True)
class Unmixed:
    """Relative errors of single directions, one for each client.

    ``plain`` is from least squares on the last 160 rounds. ``best`` has the smallest median of ridge regressions
    towards the mean sum; a server would have to guess their settings. ``guess`` is the mean of the last 160 sums.
    """

    rounds: int
    plain: np.ndarray
    best: np.ndarray
    guess: np.ndarray


def unmix(method: SoftmaxSGM, *batch_sizes: int | None) -> dict[str, Unmixed]:
    """Return how well an honest-but-curious server reads single directions of f and of g at the end of a run.

    The parameters hardly move but the weights do, so sums of n or more rounds are linear equations for n directions.
    """
    data = breast_cancer(UNMIXED_CLIENTS, seed=0)
    secure, names = fl.SecureAggregation(min_clients=5), names_of(UNMIXED_CLIENTS)
    strategy = fl.SwitchingStrategy(method, names=names, wait=0.0, memory=None, secure=secure, clip_norm=CLIP_NORM)
    grid, start = ListeningGrid(app_of(data, *batch_sizes), UNMIXED_CLIENTS), fl.initial_arrays(data.problem.start)
    strategy.start(grid, start, UNMIXED_ROUNDS)
    assert strategy.result is not None
    specs = wire.array_specs(wire.from_record(start))
    last = {name: np.asarray(part) for name, part in strategy.result.last.items()}
    clients = [make_client(data, i) for i in range(UNMIXED_CLIENTS)]
    feasible, unmixed = strategy.result.history.feasible, {}
    for function, is_objective in (("f", True), ("g", False)):
        rounds = np.array([k for k in grid.terms if feasible[k] == is_objective])
        totals: list[Any] = [np.sum(grid.masked[k], axis=0, dtype=np.uint32) for k in rounds]
        sums = np.array([join(secure_aggregation.dequantize(total, CLIP_NORM, specs)) for total in totals])
        weights = np.array([grid.terms[k].weights for k in rounds])
        loss: Any = LocalLoss(float(is_objective), np.full(1, 1.0 - is_objective), 0.0, 0.0)  # type: ignore[arg-type]
        task = fl.Task(0, 0, 1, 0.1, True)
        directions = np.array([join(client.update(last, task, loss)) for client in clients])

        def measure(guess: np.ndarray, directions: np.ndarray = directions) -> np.ndarray:
            errors: np.ndarray = np.linalg.norm(guess - directions, axis=1) / np.linalg.norm(directions, axis=1)
            return errors

        attempts = dict[tuple[int, float], np.ndarray]()
        for count in LAST_ROUNDS:
            late = rounds >= UNMIXED_ROUNDS - count
            if late.sum() >= UNMIXED_CLIENTS:
                attempts |= {(count, ridge): measure(regress(weights[late], sums[late], ridge)) for ridge in RIDGES}
        late = rounds >= UNMIXED_ROUNDS - 160
        best = min(attempts.values(), key=np.median)
        unmixed[function] = Unmixed(int(late.sum()), attempts[160, 0.0], best, measure(sums[late].mean(axis=0)))
    return unmixed


def regress(weights: np.ndarray, sums: np.ndarray, ridge: float) -> np.ndarray:
    """Return single directions by least squares, with a penalty on their distance to the mean sum."""
    mean = sums.mean(axis=0)
    rest = sums - weights.sum(axis=1, keepdims=True) * mean
    rows = np.vstack([weights, np.sqrt(ridge) * np.eye(weights.shape[1])])
    solution = np.linalg.lstsq(rows, np.vstack([rest, np.zeros((weights.shape[1], rest.shape[1]))]))[0]
    return np.asarray(mean + solution)


def join(arrays: wire.Arrays) -> np.ndarray:
    """Return all arrays as one vector."""
    return np.concatenate([np.ravel(arrays[name]) for name in sorted(arrays)])


def print_unmixing() -> None:
    """Print how well a server reads single directions from the sums of a run."""
    n, falling = UNMIXED_CLIENTS, FallingStep(first=0.5, rounds=UNMIXED_ROUNDS)
    print(f"\nSingle directions from the sums of {UNMIXED_ROUNDS} rounds, {n} clients, min_clients=5: relative errors")
    titles = "run", "directions of", "least squares", "best ridge", "below 0.5", "mean of the sums", "below 0.5"
    print(f"| {' | '.join(titles)} |\n" + "|---" * len(titles) + "|")
    runs: dict[str, tuple[dict[str, Any], int | None, int | None]] = {
        **{f"α = {alpha:g}": ({"alpha": alpha}, None, None) for alpha in (1.0, 5.0, 20.0, 100.0)},
        "α = 20, constant step size": ({"alpha": 20.0, "step_size": 0.5}, None, None),
        'α = 1, `alpha_scale="change"`': ({"alpha": 1.0, "alpha_scale": "change"}, None, None),
        "α = 20, gradients on 16 rows": ({"alpha": 20.0}, 16, None),
        "α = 5, reports on 16 rows (refused)": ({"alpha": 5.0}, None, 16),
        "α = 5, both on 16 rows (refused)": ({"alpha": 5.0}, 16, 16),
    }
    for title, (changes, *batch_sizes) in runs.items():
        method = SoftmaxSGM(**{"step_size": falling, "tolerance": 0.1, **changes})
        for function, found in unmix(method, *batch_sizes).items():
            medians = [np.median(errors) for errors in (found.plain, found.best, found.guess)]
            plain, best, guess = (f"{median:.2f}" if median >= 0.1 else f"{median:.3f}" for median in medians)
            read, guessed = (f"{(errors < 0.5).sum()} of {n}" for errors in (found.best, found.guess))
            print(f"| {title} | {function} | {plain} | {best} | {read} | {guess} | {guessed} |", flush=True)


def main() -> None:
    """Print all tables."""
    logging.disable(logging.WARNING)
    if "--unmix" not in sys.argv:
        print(f"Breast cancer, {CLIENTS} clients, tolerance 0.1, {ROUNDS} rounds: mean of {SEEDS} seeds")
        print("| α | min_clients | F | G |\n|---|---|---|---|")
        for alpha in (20.0, 6400.0):
            for count in MIN_CLIENTS:
                objective, constraint = solve_with_cap(alpha, count)
                print(f"| {alpha:g} | {'no cap' if count is None else count} | {objective:.3f} | {constraint:.3f} |")
        plain, secure = time_round(None), time_round(5)
        print(f"\nA round of {CLIENTS} clients in one process: {plain:.0f} ms, masked {secure:.0f} ms")
        print("\n| clients | parameters | seconds to mask, at a client |\n|---|---|---|")
        for clients, numbers in ((5, 10**6), (20, 10**6), (100, 10**6), (20, 10**7)):
            print(f"| {clients} | {numbers:,} | {time_masking(clients, numbers):.2f} |")
    print_unmixing()


if __name__ == "__main__":
    main()
