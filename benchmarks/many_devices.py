"""Weak scaling, counted and not timed: what one of many devices has to do where each has as many clients.

    python -m benchmarks.many_devices

Devices are virtual, on one processor, so that a clock would tell nothing. Work is what the compiler counts in the
program of one device, and clients that a device computes. The body of a loop is counted once, also of one over local
steps.
"""

from __future__ import annotations

import argparse
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import softswitch as ss
from softswitch.engine import compiled
from softswitch.engine.request import Request, RunOptions, prepare_run
from softswitch.oracles.options import Compute, Sampling
from softswitch.oracles.sharded import ShardedOracle

DEVICES = (1, 2, 4, 8)
ROWS, FEATURES, HIDDEN, ROUNDS = 64, 100, 64, 200
RULE = ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.05)
MODELS = {
    "logistic regression": {"w": np.zeros(FEATURES, np.float32)},
    "network 100→64→1": {
        "in": np.zeros((FEATURES, HIDDEN), np.float32),
        "w": np.zeros(HIDDEN, np.float32),
    },
}


def score(params: Any, x: jax.Array) -> jax.Array:
    """The model's output, of rows."""
    return (jnp.tanh(x @ params["in"]) if "in" in params else x) @ params["w"]


def objective(params: Any, batch: Any) -> jax.Array:
    """The loss of the rows of one class."""
    loss = jax.nn.softplus(-score(params, batch["x"]))
    return ss.mean_over(loss, batch["weight"] * (batch["y"] > 0))


def constraint(params: Any, batch: Any) -> jax.Array:
    """The loss of those of the other."""
    loss = jax.nn.softplus(score(params, batch["x"]))
    return ss.mean_over(loss, batch["weight"] * (batch["y"] <= 0)) - 0.6


class Work(NamedTuple):
    """What one device does and holds.

    Attributes:
        operations: in a round, as the compiler counts.
        sums: over devices in a round.
        bytes: of data.
    """

    operations: float
    sums: int
    bytes: int


def asked(model: str, clients: int, devices: int, **how: Any) -> Request:
    """A run over so many devices with so many clients on each."""
    n, generator = clients * devices, np.random.default_rng(0)
    columns = {
        "x": generator.standard_normal((n * ROWS, FEATURES), dtype=np.float32),
        "y": generator.integers(0, 2, n * ROWS).astype(np.float32),
    }
    data = ss.ClientData.from_arrays(columns, np.repeat(np.arange(n), ROWS))
    problem = ss.Problem(objective, constraint, MODELS[model])
    groups: dict[str, Any] = {"sampling": Sampling(**how), "compute": Compute(devices=devices)}
    options = RunOptions(rounds=ROUNDS, logging=ss.Logging(eval_every=0), **groups)
    return prepare_run(problem, data, (RULE,), options)


def work(model: str, clients: int, devices: int, **how: Any) -> Work:
    """The work of one device in a round in which everyone takes part."""
    run = asked(model, clients, devices, **how)
    state = run.first_state(RULE)
    run_chunk: Any = compiled.CompiledEngine.run_chunk
    program = run_chunk.lower(run.setup(RULE), run.program(1), run.span(0), jax.random.key(0), state).compile()
    costs: Any = program.cost_analysis()
    columns = run.oracle.rows.columns.values()  # type: ignore[attr-defined]
    held = sum(column.addressable_shards[0].data.nbytes for column in columns)
    return Work(costs["flops"], len(re.findall(r" all-reduce\(", program.as_text() or "")), held)


def busiest(clients: int, devices: int, participation: float) -> float:
    """Client computations of the busiest device in a round, in the mean over rounds, over its fair share."""
    oracle = asked("logistic regression", clients, devices, participation=participation, batch_size=8).oracle
    assert isinstance(oracle, ShardedOracle)
    keys = jax.vmap(lambda k: jax.random.fold_in(jax.random.key(0), k))(jnp.arange(ROUNDS))
    taking_part = np.asarray(jax.jit(lambda oracle, keys: jax.vmap(oracle.draw)(keys).clients)(oracle, keys))
    owner = np.asarray(oracle.owner)[taking_part]
    own = np.stack([(owner == device).sum(axis=1) for device in range(devices)], axis=1)
    computed = -(-own // oracle.slice_size) * oracle.slice_size
    return float(computed.max(axis=1).mean()) / (oracle.participants / devices)


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=64, help="on each device")
    clients = parser.parse_args().clients
    jax.config.update("jax_num_cpu_devices", max(DEVICES))
    print(f"Everyone takes part, {clients} clients a device:\n")
    print("| model | batch, E | " + " | ".join(f"{d} devices" for d in DEVICES) + " | sums a round |")
    print("|---" * (3 + len(DEVICES)) + "|")
    for model in MODELS:
        for batch, steps in ((32, 1), (None, 1), (32, 5)):
            found = [work(model, clients, d, batch_size=batch, local_steps=steps) for d in DEVICES]
            cells = " | ".join(f"{found[0].operations / one.operations:.1%}" for one in found)
            assert len({one.bytes for one in found}) == 1
            print(f"| {model} | {batch or 'all'}, {steps} | {cells} | {found[-1].sums} |", flush=True)
    print("\nHalf of the clients take part:\n")
    print("| participants a device | " + " | ".join(f"{d} devices" for d in DEVICES) + " |")
    print("|---" * (1 + len(DEVICES)) + "|")
    for a_device in (8, 32, 128, 512):
        cells = " | ".join(f"{1 / busiest(2 * a_device, d, 0.5):.1%}" for d in DEVICES)
        print(f"| {a_device} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
