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
UNMIXED_CLIENTS, UNMIXED_ROUNDS, LAST_ROUNDS, CLIP_NORM = 12, 800, 160, 20.0


@dataclass(frozen=True, kw_only=True)
class CappedSGM(SoftmaxSGM):
    """Softmax SGM with weights of at most ``most``, as with ``SecureAggregation`` up to rounding."""

    most: float = 1.0

    def decide(self, state: Any, reports: Any) -> tuple[Any, Any]:
        """Return the decision of Softmax SGM with capped weights."""
        decision, after = super().decide(state, reports)
        cap = jnp.asarray(self.most, decision.weights.dtype)
        return cap_weights(super().decide, state, reports, decision, cap), after


def make_client(data: Any, i: int) -> fl.JaxClient:
    """Return client i of a data set, with its own rows."""
    end, size = int(np.cumsum(data.train.sizes)[i]), int(data.train.sizes[i])
    columns = {name: np.asarray(column)[end - size : end] for name, column in data.train.rows.columns.items()}
    return fl.JaxClient(data.problem, columns, name=str(i), strata="y", batch_size=None)


def app_of(data: Any) -> Any:
    """Return the app of the clients of a data set."""

    def factory(context: Any) -> fl.JaxClient:
        return make_client(data, int(context.node_config["partition-id"]))

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
        settings = {"clip_norm": 10.0, "secure": fl.SecureAggregation(min_clients=min_clients)}
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


def unmix(alpha: float) -> dict[str, tuple[int, np.ndarray, np.ndarray]]:
    """Return rounds, errors of least squares and errors of the sum as a guess, for directions of f and of g.

    The server follows the protocol. Late in the run the parameters hardly move but the weights do, so the sums of n or
    more rounds are linear equations for n directions. Errors are relative, one for each client, at the last iterate.
    """
    data = breast_cancer(UNMIXED_CLIENTS, seed=0)
    method = SoftmaxSGM(alpha=alpha, step_size=FallingStep(first=0.5, rounds=UNMIXED_ROUNDS), tolerance=0.1)
    secure, names = fl.SecureAggregation(min_clients=5), names_of(UNMIXED_CLIENTS)
    strategy = fl.SwitchingStrategy(method, names=names, wait=0.0, secure=secure, clip_norm=CLIP_NORM)
    grid, start = ListeningGrid(app_of(data), UNMIXED_CLIENTS), fl.initial_arrays(data.problem.start)
    strategy.start(grid, start, UNMIXED_ROUNDS)
    assert strategy.result is not None
    specs = wire.array_specs(wire.from_record(start))
    last = {name: np.asarray(part) for name, part in strategy.result.last.items()}
    clients = [make_client(data, i) for i in range(UNMIXED_CLIENTS)]
    feasible, found = strategy.result.history.feasible, {}
    for function, is_objective in (("f", True), ("g", False)):
        rounds = [k for k in grid.terms if feasible[k] == is_objective and k >= UNMIXED_ROUNDS - LAST_ROUNDS]
        if len(rounds) < UNMIXED_CLIENTS:
            continue
        totals: list[Any] = [np.sum(grid.masked[k], axis=0, dtype=np.uint32) for k in rounds]
        sums = np.array([join(secure_aggregation.dequantize(total, CLIP_NORM, specs)) for total in totals])
        weights = np.array([grid.terms[k].weights for k in rounds])
        loss: Any = LocalLoss(float(is_objective), np.full(1, 1.0 - is_objective), 0.0, 0.0)  # type: ignore[arg-type]
        task = fl.Task(0, 0, 1, 0.1, True)
        directions = np.array([join(client.update(last, task, loss)) for client in clients])
        guesses = np.linalg.lstsq(weights, sums)[0], sums.mean(axis=0)
        size = np.linalg.norm(directions, axis=1)
        errors = [np.linalg.norm(guess - directions, axis=1) / size for guess in guesses]
        found[function] = (len(rounds), *errors)
    return found


def join(arrays: wire.Arrays) -> np.ndarray:
    """Return all arrays as one vector."""
    return np.concatenate([np.ravel(arrays[name]) for name in sorted(arrays)])


def print_unmixing() -> None:
    """Print how well least squares reads single directions from the sums of a run."""
    n, rounds = UNMIXED_CLIENTS, UNMIXED_ROUNDS
    print(f"\nLeast squares on the sums of the last {LAST_ROUNDS} of {rounds} rounds, {n} clients, min_clients=5:")
    print("relative error of single directions, and of the mean of the sums as a guess")
    print("| α | directions of | rounds | best | median | clients below 0.5 | guess: median |\n" + "|---" * 7 + "|")
    for alpha in (1.0, 5.0, 20.0, 100.0):
        for function, (used, errors, guess) in unmix(alpha).items():
            numbers = f"{errors.min():.2f} | {np.median(errors):.2f} | {(errors < 0.5).sum()} of {n}"
            print(f"| {alpha:g} | {function} | {used} | {numbers} | {np.median(guess):.2f} |", flush=True)


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
