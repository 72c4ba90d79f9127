"""Runs over Flower in process: second order on tables, and automatic settings compared with settings by hand."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from benchmarks.tables.cases import CASES, Case
from benchmarks.tables.known import known
from softswitch.flower import messages as wire
from softswitch.results.result import Result
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

HOSPITALS = Path(__file__).parents[1] / "examples" / "hospitals"
BY_HAND = ss.SoftmaxSGM(alpha=50.0, step_size=2.0, local_step_size=0.5, tolerance=0.3)
"""The example's own settings."""


TABLES = ("adult", "cancer", "digits")
"""Tables that need no download; they have four cases."""
NEAR = 1e-3
"""Distance from F*, relative to it, that counts as reached."""


def said(result: Result) -> str:
    """Return F and G of an answer as text."""
    return f"F {result.worst_objective:.4g}, G {result.worst_constraint:.4g}"


class CountingGrid(fl.InProcessGrid):
    """A grid that counts the bytes of second derivatives, to and from clients."""

    sent = received = messages = 0

    def deliver(self, message: Message) -> Message | None:
        """Count a message and its reply."""
        reply = super().deliver(message)
        if message.metadata.message_type == wire.DERIVATIVES and reply is not None:
            self.sent += sum(record.count_bytes() for record in message.content.values())
            self.received += sum(record.count_bytes() for record in reply.content.values())
            self.messages += 1
        return reply


def solve_table(case: Case) -> tuple[Result, CountingGrid]:
    """Run ``SQP`` over Flower on a table, with one client for each of its clients."""
    problem, data = case.make()
    ends = np.cumsum(data.sizes)

    def factory(context: Context) -> fl.JaxClient:
        i = int(context.node_config["partition-id"])
        rows = slice(int(ends[i] - data.sizes[i]), int(ends[i]))
        columns = {name: np.asarray(column[rows]) for name, column in data.rows.columns.items()}
        return fl.JaxClient(problem, columns, name=str(data.names[i]), batch_size=None)

    policy = dataclasses.replace(fl.ClientPolicy.for_simulations(), second_order=True)
    grid = CountingGrid(fl.client_app(factory, policy), len(data))
    strategy = fl.SwitchingStrategy(ss.SQP(tolerance=case.tolerance), convex=case.convex or None)
    strategy.start(grid, fl.initial_arrays(problem.start), 50)
    assert strategy.result is not None
    return strategy.result, grid


def on_tables() -> None:
    """Print after how many exchanges second order is within 0.1% of F*, which SciPy finds, and the bytes of each."""
    for case in (case for case in CASES if case.table in TABLES):
        began = time.perf_counter()
        result, grid = solve_table(case)
        seconds = time.perf_counter() - began
        best = known(case).optimum
        history = result.history
        near = (history.objective <= (1 + NEAR) * best) & (history.constraint <= case.tolerance * (1 + 1e-6))
        first = int(near.argmax()) + 1 if near.any() else None
        total = round(grid.messages / len(result.names), 1)
        print(
            f"{case.name}: {len(result.names)} clients, within 0.1% of F* = {best:.6g} after {first} exchanges; "
            f"answer after {len(history)} exchanges, {total} messages per client with the bound, {seconds:.1f} s, "
            f"{said(result)}, {result.worst_objective / best - 1:+.1e} of F*, {result.lower_bound}; "
            f"bytes per client and exchange: {grid.sent // grid.messages} down, {grid.received // grid.messages} up",
            flush=True,
        )


def beside_compiled() -> None:
    """Print what both engines reach on breast cancer with automatic settings of a first-order method."""
    for clients, rounds in ((4, 100), (20, 300)):
        data = breast_cancer(clients)
        for engine in ("compiled", "grid"):
            result = flat.solve(
                data.problem,
                data.train,
                ss.Automatic(0.05, ss.SoftmaxSGM),
                rounds=rounds,
                eval_every=0,
                lower_bound=False,
                engine=engine,
            )
            print(f"{clients} clients, {rounds} rounds, {engine}: {said(result)}")


def beside_hand() -> None:
    """Print what the network of examples/hospitals reaches with its settings, and with a tolerance alone."""
    sys.path.insert(0, str(HOSPITALS))
    client, network = (import_module(f"hospitals.{name}") for name in ("client_app", "network"))
    chosen = ss.Automatic(tolerance=0.3)
    ways: dict[str, tuple[ss.SoftmaxSGM | ss.Automatic, dict[str, Any]]] = {
        "by hand, 10 local steps": (BY_HAND, {"local_steps": 10, "average_last": 0.5}),
        "chosen, 10 local steps": (chosen, {"local_steps": 10}),
        "chosen, one local step": (chosen, {}),
    }
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(HOSPITALS / "data.py"), folder], check=True, stdout=subprocess.DEVNULL)
        for rounds in (8, 30, 100):
            for name, (method, settings) in ways.items():
                grid = fl.InProcessGrid(client.app, 5, {"data": folder, "model": "network"})
                strategy = fl.SwitchingStrategy(method, **settings)
                strategy.start(grid, fl.initial_arrays(fl.parameters(network.network())), rounds)
                assert strategy.result is not None
                print(f"{rounds} rounds, {name}: {said(strategy.result)}", flush=True)


if __name__ == "__main__":
    import_module("flwr")  # it sets its own level
    logging.getLogger("flwr").setLevel(logging.ERROR)
    on_tables()
    beside_compiled()
    beside_hand()
