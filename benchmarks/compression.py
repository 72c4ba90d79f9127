"""Bytes over Flower to the same F and G, with compression and without: a network on Adult, ten clients in one process.

python -m benchmarks.compression            # the table of docs/federated/compression.md
python -m benchmarks.compression quick      # a minute less, for a look
python -m benchmarks.compression tune       # the first seed only, more ways: how those of the table were chosen
"""

from __future__ import annotations

import logging
import sys
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message
from flwr.common.serde import recorddict_to_proto

import softswitch as ss
import softswitch.flower as fl
from softswitch import methods as methods
from softswitch.flower.jax_client import unflatten_params
from softswitch_experiments.tasks.fair_classification import adult

CLIENTS, TOLERANCE, ROUNDS, LOOK = 10, 0.05, 200, 5
TUNED_ON, SEEDS = 0, (1, 2, 3)
SETTINGS: dict[str, Any] = {"alpha": 10.0, "step_size": 0.3, "tolerance": TOLERANCE}
WAYS: dict[str, methods.Compression | None] = {
    "plain": None,
    "5 % in 4 bits up, 10 % down": methods.Compression(up=methods.TopK(0.05, 4), down=methods.TopK(0.1, 4)),
}
TRIED: dict[str, methods.Compression | None] = {
    **WAYS,
    "2 % in 4 bits up, 5 % down": methods.Compression(up=methods.TopK(0.02, 4), down=methods.TopK(0.05, 4)),
}


class Look(NamedTuple):
    """How good w_k is, and how many bytes it took so far: whole messages of the rounds, both ways."""

    round: int
    objective: float
    constraint: float
    up: int
    down: int


class CountingGrid(fl.InProcessGrid):
    """A grid that counts the bytes of the rounds' messages, as Flower sends them."""

    up = down = 0

    def deliver(self, message: Message) -> Message | None:
        """As usual, and counted."""
        reply = super().deliver(message)
        if message.metadata.message_type in ("query.report", "train.update"):
            self.down += recorddict_to_proto(message.content).ByteSize()
            self.up += 0 if reply is None or reply.has_error() else recorddict_to_proto(reply.content).ByteSize()
        return reply


def course(
    seed: int, way: methods.Compression | None, rounds: int, rows: int | None = None, target: float | None = None
) -> list[Look]:
    """F, G and bytes, every few rounds; it ends where F is at most the target and the constraint is met."""
    data = adult(CLIENTS, seed=seed)
    problem, ends = data.problem, np.cumsum(data.train.sizes)
    everyone = [
        {name: column[end - size : end][:rows] for name, column in data.train.rows.columns.items()}
        for end, size in zip(ends, data.train.sizes, strict=True)
    ]
    clients = ss.ClientData.from_list(everyone)

    def client(context: Any) -> fl.JaxClient:
        i = int(context.node_config["partition-id"])
        return fl.JaxClient(problem, everyone[i], name=f"{i}", batch_size=256, value_batch_size=None)

    grid, looks = CountingGrid(fl.client_app(client, fl.ClientPolicy.for_simulations()), CLIENTS), list[Look]()

    def look(chunk: Any) -> bool:
        if chunk.round % LOOK == 0:
            params = unflatten_params(chunk.state.params, problem.start)
            objective, constraint = (float(np.max(part)) for part in ss.evaluate(problem, clients, params)[:2])
            looks.append(Look(chunk.round, objective, constraint, grid.up, grid.down))
        return target is not None and reached(looks, target) is not None

    method = ss.SoftmaxSGM(at_clients=way, **SETTINGS)
    assert isinstance(problem.constraint, ss.PooledConstraint)
    strategy = fl.SwitchingStrategy(method, seed=seed, callbacks=[look], pooled=problem.constraint.value)
    strategy.start(grid, fl.initial_arrays(problem.start), rounds)
    return looks


def reached(looks: list[Look], objective: float) -> Look | None:
    """The first look at which F is at most so much and the constraint is met."""
    good = [one for one in looks if one.objective <= objective and one.constraint <= TOLERANCE]
    return good[0] if good else None


def compare(seeds: tuple[int, ...], ways: dict[str, Any], rounds: int = ROUNDS, rows: int | None = None) -> dict:
    """Bytes to the F and G that a plain run has reached by its end, within 1 %; print them, and give the shares."""
    shares: dict[str, list[float]] = {}
    for seed in seeds:
        plain = course(seed, None, rounds, rows)
        met = [one.objective for one in plain if one.constraint <= TOLERANCE]
        if not met:
            print(f"seed {seed}: the constraint was never met")
            continue
        target = 1.01 * min(met)
        base = reached(plain, target)
        assert base is not None
        print(f"seed {seed}: F <= {target:.4f} and G <= {TOLERANCE:g}")
        for name, way in ways.items():
            one = base if way is None else reached(course(seed, way, 2 * rounds, rows, target), target)
            if one is None:
                print(f"  {name:40s} not within {2 * rounds} rounds", flush=True)
                shares.setdefault(name, []).append(0.0)
                continue
            fewer = (base.up + base.down) / (one.up + one.down)
            shares.setdefault(name, []).append(fewer)
            print(
                f"  {name:40s} {one.round:4d} rounds  {one.up / 1e3:9,.0f} kB up  {one.down / 1e3:9,.0f} kB down  "
                f"{fewer:5.1f} times fewer",
                flush=True,
            )
    return shares


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    asked = sys.argv[1:]
    if asked == ["tune"]:
        compare((TUNED_ON,), TRIED)
    elif asked == ["quick"]:
        compare((TUNED_ON,), WAYS, rounds=20, rows=200)
    else:
        compare(SEEDS, WAYS)
