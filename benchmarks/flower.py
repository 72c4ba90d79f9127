"""Rounds over Flower's messages: what the in-process grid costs, and what it adds to the compiled engine."""

from __future__ import annotations

import logging
import statistics
import time
from typing import Any

import numpy as np

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from softswitch.flower import messages as wire
from softswitch_experiments.tasks.neyman_pearson import neyman_pearson
from softswitch_experiments.tasks.paper_settings import ANSWER, RUN, SOFTMAX_SWITCH, steps

CLIENTS, ROWS, FEATURES, ROUNDS, WARM = 100, 50, 31, 60, 10
RULE = ss.SoftmaxSGM(alpha=50.0, tolerance=0.3, **steps(0.2), **SOFTMAX_SWITCH)


def rows(i: int) -> dict[str, np.ndarray]:
    """Client i's rows."""
    generator = np.random.default_rng(i)
    y = (np.arange(ROWS) % 2).astype(np.int32)
    x = generator.normal(size=(ROWS, FEATURES)).astype(np.float32) + y[:, None]
    return {"x": x, "y": y}


def logistic(params: dict[str, np.ndarray], batch: dict[str, np.ndarray], label: int) -> tuple[float, dict[str, Any]]:
    """The loss of one class and its gradient, in NumPy."""
    own = batch["y"] == label
    x = batch["x"][own]
    score = x @ params["w"]
    chance = 1 / (1 + np.exp(-score))
    return float(np.logaddexp(0, score).mean() - label * score.mean()), {"w": (chance - label) @ x / len(x)}


def milliseconds(app: Any, start: dict[str, np.ndarray]) -> float:
    """Of a round, the median after some to warm up."""
    times = [time.perf_counter()]
    watch = [lambda chunk: times.append(time.perf_counter())]
    strategy = fl.SwitchingStrategy(RULE, local_steps=1, participation=1.0, callbacks=watch, **ANSWER)
    strategy.start(fl.InProcessGrid(app, CLIENTS), wire.to_record(start), ROUNDS)
    return 1e3 * statistics.median(np.diff(times)[WARM:])


def over_flower() -> None:
    """Print milliseconds a round of both kinds of clients beside the compiled engine's."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    problem = neyman_pearson(FEATURES)
    everyone = [rows(i) for i in range(CLIENTS)]
    clients = ss.ClientData.from_list(everyone)

    def compiled() -> float:
        began = time.perf_counter()
        flat.solve(problem, clients, RULE, rounds=1000, batch_size=None, eval_every=0, **RUN)
        return time.perf_counter() - began

    compiled()
    first = {"w": np.zeros(FEATURES, np.float32)}

    def with_jax(context: Any) -> fl.JaxClient:
        i = int(context.node_config["partition-id"])
        return fl.JaxClient(problem, everyone[i], name=str(i), batch_size=None)

    def with_numpy(context: Any) -> fl.NumpyClient:
        i = int(context.node_config["partition-id"])
        return fl.NumpyClient(
            lambda w, b: logistic(w, b, 0),
            lambda w, b: logistic(w, b, 1),
            everyone[i],
            first,
            name=str(i),
            batch_size=None,
        )

    anyone = fl.ClientPolicy.for_simulations()
    print(f"\nA round of {CLIENTS} clients in one process, {FEATURES} parameters, {ROWS} rows each")
    print(f"  compiled engine                          {compiled():8.3f} ms")
    print(
        f"  Flower's messages, NumPy clients         {milliseconds(fl.client_app(with_numpy, anyone), first):8.3f} ms"
    )
    jax_start = {"": np.zeros(FEATURES, np.float32)}
    print(
        f"  Flower's messages, JAX clients           {milliseconds(fl.client_app(with_jax, anyone), jax_start):8.3f} ms"
    )


if __name__ == "__main__":
    over_flower()
