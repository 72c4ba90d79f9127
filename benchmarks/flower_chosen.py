"""Settings that choose themselves over Flower, in process: beside the compiled engine, and beside settings by hand."""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import softswitch as ss
import softswitch.flower as fl
from benchmarks import flat
from softswitch.results.result import Result
from softswitch_experiments.tasks.neyman_pearson import breast_cancer

HOSPITALS = Path(__file__).parents[1] / "examples" / "hospitals"
BY_HAND = ss.SoftmaxSGM(alpha=50.0, step_size=2.0, local_step_size=0.5, tolerance=0.3)
"""The example's own settings."""


def said(result: Result) -> str:
    """F and G of an answer."""
    return f"F {result.worst_objective:.4g}, G {result.worst_constraint:.4g}"


def beside_compiled() -> None:
    """Print what both engines reach on breast cancer by a tolerance alone."""
    for clients, rounds in ((4, 100), (20, 300)):
        data = breast_cancer(clients)
        for engine in ("compiled", "grid"):
            result = flat.solve(
                data.problem,
                data.train,
                ss.Automatic(tolerance=0.05),
                rounds=rounds,
                eval_every=0,
                lower_bound=False,
                engine=engine,
            )
            print(f"{clients} clients, {rounds} rounds, {engine}: {said(result)}")


def beside_hand() -> None:
    """Print what the network of examples/hospitals reaches by its own settings, and by a tolerance alone."""
    sys.path.insert(0, str(HOSPITALS))
    client, task = (import_module(f"hospitals.{name}") for name in ("client_app", "task"))
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
                grid = fl.InProcessGrid(client.app, 5, {"data": folder})
                strategy = fl.SwitchingStrategy(method, **settings)
                strategy.start(grid, fl.initial_arrays(fl.parameters(task.network())), rounds)
                assert strategy.result is not None
                print(f"{rounds} rounds, {name}: {said(strategy.result)}", flush=True)


if __name__ == "__main__":
    import_module("flwr")  # it sets its own level
    logging.getLogger("flwr").setLevel(logging.ERROR)
    beside_compiled()
    beside_hand()
