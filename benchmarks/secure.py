"""What sums under masks cost: the cap on weights, and the masks themselves (python -m benchmarks.secure)."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flwr.app import Context, RecordDict

import softswitch.flower as fl
from softswitch import SoftmaxSGM, solve
from softswitch.flower import secure_aggregation
from softswitch.flower.secure_aggregation import SHARES, AggregationTerms
from softswitch.methods.robust import cap_weights
from softswitch.oracles.options import Output
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

CLIENTS, ROUNDS, SEEDS, TIMED = 20, 1000, 5, 10
FEWEST = (None, 3, 5, 10)


@dataclass(frozen=True, kw_only=True)
class CappedSGM(SoftmaxSGM):
    """Softmax SGM with nobody above a cap: what a run with ``SecureAggregation`` computes, but for rounding.

    Attributes:
        most: the cap.
    """

    most: float = 1.0

    def decide(self, state: Any, reports: Any) -> tuple[Any, Any]:
        """As Softmax SGM, and then capped."""
        decision, after = super().decide(state, reports)
        cap = jnp.asarray(self.most, decision.weights.dtype)
        return cap_weights(super().decide, state, reports, decision, cap), after


def app_of(data: Any) -> Any:
    """The clients of a data set, each with its own rows."""
    ends = np.cumsum(data.train.sizes)
    columns = {name: np.asarray(column) for name, column in data.train.rows.columns.items()}

    def factory(context: Any) -> fl.JaxClient:
        i = int(context.node_config["partition-id"])
        own = {name: column[ends[i] - data.train.sizes[i] : ends[i]] for name, column in columns.items()}
        return fl.JaxClient(data.problem, own, name=str(i), strata="y", batch_size=None)

    return fl.client_app(factory, fl.ClientPolicy.for_simulations())


def with_cap(alpha: float, fewest: int | None) -> tuple[float, float]:
    """Mean F and G over the seeds, of plain runs or of those whose sums are of so many clients."""
    found = []
    for seed in range(SEEDS):
        data, most = breast_cancer(CLIENTS, seed=seed), 1.0 if fewest is None else 1 / fewest
        method = CappedSGM(alpha=alpha, step_size=0.5, tolerance=0.1, most=most)
        result = solve(data.problem, data.train, method, rounds=ROUNDS, output=Output(average_last=0.5))
        found.append((result.worst_objective, result.worst_constraint))
    return tuple(np.mean(found, axis=0).tolist())


def milliseconds(fewest: int | None) -> float:
    """Of a round of all clients in one process."""
    data, settings = breast_cancer(CLIENTS), dict[str, Any]()
    if fewest is not None:
        settings = {"clip_norm": 10.0, "secure": fl.SecureAggregation(min_clients=fewest), "simulation": True}
    spent = []
    for rounds in (1, 1, 1 + TIMED):  # the first compiles
        strategy = fl.SwitchingStrategy(SoftmaxSGM(alpha=20.0, step_size=0.5, tolerance=0.1), **settings)
        grid, began = fl.InProcessGrid(app_of(data), CLIENTS), time.perf_counter()
        strategy.start(grid, fl.initial_arrays(data.problem.start), rounds)
        spent.append(time.perf_counter() - began)
    return 1000 * (spent[2] - spent[1]) / TIMED


def masking(clients: int, numbers: int) -> float:
    """Seconds in which one client masks a direction of so many numbers among so many clients."""
    contexts = [Context(1, i, {}, RecordDict(), {}) for i in range(clients)]
    keys: list[Any] = [
        secure_aggregation.create_round_key(0, str(i), context, None)["key"] for i, context in enumerate(contexts)
    ]
    names, weights = [str(i) for i in range(clients)], [1 / clients] * clients
    terms = AggregationTerms(0, names, keys, weights, clients // 2 + 1, 10.0, [])
    direction = {"w": np.zeros(numbers, np.float32)}
    began = time.perf_counter()
    sent = secure_aggregation.mask_direction(direction, terms, "0", contexts[0], 2, None)
    assert len(sent[SHARES]["shares"]) == clients
    return time.perf_counter() - began


def main() -> None:
    """Both tables."""
    logging.disable(logging.WARNING)
    print(f"Breast cancer, {CLIENTS} clients, tolerance 0.1, {ROUNDS} rounds: mean of {SEEDS} seeds")
    print("| α | effective number at least | F | G |\n|---|---|---|---|")
    for alpha in (20.0, 6400.0):
        for fewest in FEWEST:
            objective, constraint = with_cap(alpha, fewest)
            print(f"| {alpha:g} | {'no cap' if fewest is None else fewest} | {objective:.3f} | {constraint:.3f} |")
    print(
        f"\nA round of {CLIENTS} clients in one process: {milliseconds(None):.0f} ms, masked {milliseconds(5):.0f} ms"
    )
    print("\n| clients | parameters | seconds to mask, at a client |\n|---|---|---|")
    for clients, numbers in ((5, 10**6), (20, 10**6), (100, 10**6), (20, 10**7)):
        print(f"| {clients} | {numbers:,} | {masking(clients, numbers):.2f} |")


if __name__ == "__main__":
    main()
