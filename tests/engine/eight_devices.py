"""Runs on eight devices of one process beside the same on one: what differs, as JSON. A process of its own.

python eight_devices.py FOLDER RUN...
"""

import json
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, two_constraints
from softswitch.engine import compiled
from softswitch.engine.request import RunOptions, request
from softswitch.oracles import derivatives
from softswitch.oracles.options import Sampling

SETTINGS = {"alpha": 20.0, "step_size": 0.1, "tolerance": 0.05}
RULE = ss.SoftmaxSGM(**SETTINGS)


def noisy(w, batch, key):
    value = least_squares(w, batch)
    return value if key is None else value + 0.1 * jnp.dot(w, jax.random.normal(key, w.shape))


def shares(w, batch):
    over = batch["weight"] * jax.nn.sigmoid(batch["c"] @ w)
    return jnp.stack([over.sum(), batch["weight"].sum()])


POOLED = ss.PooledConstraint(shares, lambda sums: sums[0] / sums[1] - 0.55)


def made(objective=least_squares, constraint=two_constraints, dtype=None, strata=False, clients=19):
    data, owner = regression(clients=clients)
    if strata:
        data["kind"] = (data["b"] > 1).astype(float)
    data = {name: column.astype(dtype or float) for name, column in data.items()}
    whose = client_data(data, owner, strata="kind" if strata else None)
    return ss.Problem(objective, constraint, jnp.zeros(4, dtype or float)), whose


def apart(one, many):
    """The largest relative difference of what two runs end with, and whether they passed the same rounds."""

    def of(result):
        seen = [result.history.objective, result.history.criterion, result.history.full.objective]
        seen += [] if result.history.held_out is None else [result.history.held_out.constraint]
        return [*jax.tree.leaves(result.params), result.client_objective, result.client_constraint, *seen]

    pairs = zip(of(one), of(many), strict=True)
    largest = max(float(np.nanmax(np.abs(a - b) / np.maximum(1, np.abs(a)))) for a, b in pairs)
    assert np.array_equal(one.history.feasible, many.history.feasible)
    assert 0 < one.history.feasible.sum() < len(one.history), "both branches are to be seen"
    return largest


def compared(problem, clients, method, **options):
    options = {"progress": False, "rounds": 20, "eval_every": 7} | options
    one = flat.solve(problem, clients, method, **options)
    return one, flat.solve(problem, clients, method, devices="all", **options)


def few_and_local_steps():
    problem, clients = made(strata=True)
    held_out = made(strata=True, clients=5)[1]  # fewer than devices
    options = {"participation": 0.5, "local_steps": 3, "batch_size": 4, "held_out": held_out, "record_clients": True}
    one, many = compared(problem, clients, RULE, **options)
    assert np.array_equal(one.history.per_client.clients, many.history.per_client.clients)
    return apart(one, many)


def pooled_with_memory():
    problem, clients = made(constraint=POOLED)
    method = ss.SoftmaxSGM(**SETTINGS | {"tolerance": 0.01}, criterion="pooled")
    one, many = compared(problem, clients, method, participation=0.5, batch_size=None, memory=ss.Memory())
    assert abs(one.pooled_constraint - many.pooled_constraint).max() < 1e-12
    return apart(one, many)


def robust_and_random():
    problem, clients = made(objective=noisy)
    method = ss.SoftmaxSGM(**SETTINGS, robust=1)
    return apart(*compared(problem, clients, method, batch_size=4, replace=False))


def several_slices():
    problem, clients = made()
    method = ss.Penalty(penalty=2.0, step_size=0.1, tolerance=0.05)
    return apart(*compared(problem, clients, method, batch_size=4, value_batch_size=None, client_batch_size=2))


def single_precision():
    problem, clients = made(dtype=np.float32)
    return apart(*compared(problem, clients, RULE, participation=0.5, batch_size=4))


def chosen_and_resumed_on_others(folder):
    """A run that chooses for itself: begun on eight devices, gone on with on three, ended on one."""
    compiled.CHUNK_ROUNDS = 10
    problem, clients = made()
    options = {"progress": False, "rounds": 120, "lower_bound": False}
    whole = flat.solve(problem, clients, ss.Automatic(tolerance=0.05), **options)
    for devices, until in (("all", 30), (jax.devices()[2:5], 60), (None, 120)):
        part = flat.solve(
            problem,
            clients,
            ss.Automatic(tolerance=0.05),
            devices=devices,
            checkpoints=ss.Checkpoints(folder, every=0),
            callbacks=[lambda chunk, until=until: chunk.round >= until],
            **options,
        )
        assert until <= len(part.history) < until + 10, "it goes on from where it stood"
    return apart(whole, part)


def second_order():
    """SQP on five and on eight devices: clients with several widths, and a pooled constraint."""
    differences = []
    derivatives.WORTH_A_WIDTH = 1
    for constraint, criterion in ((two_constraints, None), (POOLED, "pooled")):
        problem, clients = made(constraint=constraint)
        method, logging = ss.SQP(tolerance=0.05, criterion=criterion), ss.Logging(held_out=made(clients=5)[1])
        one, *others = (
            ss.solve(problem, clients, method, compute=ss.Compute(devices=devices), logging=logging)
            for devices in (None, 5, "all")
        )
        for many in others:
            assert len(many.history) == len(one.history)
            differences += [abs(many.lower_bound.value - one.lower_bound.value), apart(one, many)]
    return max(differences)


def work():
    """The work of one device as the compiler counts it, and what is exchanged, with 16 clients a device."""
    counted = {}
    for devices in (1, 8):
        n, generator = 16 * devices, np.random.default_rng(0)
        columns = {name: generator.normal(size=(n * 30, 20)) for name in ("a", "c", "h")}
        columns["b"] = generator.normal(size=n * 30)
        clients = ss.ClientData.from_arrays(columns, np.repeat(np.arange(n), 30))
        problem = ss.Problem(least_squares, two_constraints, jnp.zeros(20))
        how = {"sampling": Sampling(batch_size=16), "logging": ss.Logging(eval_every=0)}
        asked = request(problem, clients, (RULE,), RunOptions(rounds=5, compute=ss.Compute(devices=devices), **how))
        arguments = (asked.setup(RULE), asked.program(5), asked.span(0), jax.random.key(0), asked.first_state(RULE))
        program = compiled.CompiledEngine.run_chunk.lower(*arguments).compile()
        counted[devices] = {
            "flops": program.cost_analysis()["flops"],
            "sums": len(re.findall(r" all-reduce\(", program.as_text())),
            "others": len(
                re.findall(r" (all-gather|all-to-all|collective-permute|reduce-scatter)\(", program.as_text())
            ),
            "rows": [shard.data.shape[0] for shard in asked.oracle.rows.columns["a"].addressable_shards],
        }
    return counted


def refusals():
    problem, clients = made(clients=5)
    said = {}
    bad = {"more than clients": 8, "twice": [jax.devices()[0]] * 2, "too many": 9, "none": [], "word": "most"}
    for name, devices in bad.items():
        try:
            flat.solve(problem, clients, RULE, rounds=2, devices=devices, progress=False)
        except (TypeError, ValueError) as error:
            said[name] = str(error)
    return said


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    folder, *names = sys.argv[1:]
    runs = {
        one.__name__: one
        for one in (few_and_local_steps, pooled_with_memory, robust_and_random, several_slices, single_precision)
    }
    runs |= {"chosen_and_resumed_on_others": lambda: chosen_and_resumed_on_others(Path(folder))}
    runs |= {"second_order": second_order, "work": work, "refusals": refusals}
    print(json.dumps({name: runs[name]() for name in names}))
