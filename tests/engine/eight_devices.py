"""Compare runs on eight devices of one process with runs on one, and print the differences as JSON.

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
from softswitch.engine.request import RunOptions, prepare_run
from softswitch.oracles import derivatives
from softswitch.oracles.options import Sampling

SETTINGS = {"alpha": 20.0, "step_size": 0.1, "tolerance": 0.05}
RULE = ss.SoftmaxSGM(**SETTINGS)


def noisy(w, batch, key):
    value = least_squares(w, batch)
    return value if key is None else value + 0.1 * jnp.dot(w, jax.random.normal(key, w.shape))


def shares(w, batch):
    exceedances = batch["weight"] * jax.nn.sigmoid(batch["c"] @ w)
    return jnp.stack([exceedances.sum(), batch["weight"].sum()])


POOLED = ss.PooledConstraint(shares, lambda sums: sums[0] / sums[1] - 0.55)


def make_problem(objective=least_squares, constraint=two_constraints, dtype=None, strata=False, clients=19):
    data, owner = regression(clients=clients)
    if strata:
        data["kind"] = (data["b"] > 1).astype(float)
    data = {name: column.astype(dtype or float) for name, column in data.items()}
    clients_by_owner = client_data(data, owner, strata="kind" if strata else None)
    return ss.Problem(objective, constraint, jnp.zeros(4, dtype or float)), clients_by_owner


def max_difference(single, sharded):
    """Return the largest relative difference of two results, after checking that the same rounds were feasible."""

    def values_of(result):
        recorded = [result.history.objective, result.history.criterion, result.history.full.objective]
        recorded += [] if result.history.held_out is None else [result.history.held_out.constraint]
        return [*jax.tree.leaves(result.params), result.client_objective, result.client_constraint, *recorded]

    pairs = zip(values_of(single), values_of(sharded), strict=True)
    largest = max(float(np.nanmax(np.abs(a - b) / np.maximum(1, np.abs(a)))) for a, b in pairs)
    assert np.array_equal(single.history.feasible, sharded.history.feasible)
    assert 0 < single.history.feasible.sum() < len(single.history), "both branches must occur"
    return largest


def solve_on_one_and_all(problem, clients, method, **options):
    options = {"progress": False, "rounds": 20, "eval_every": 7} | options
    single = flat.solve(problem, clients, method, **options)
    return single, flat.solve(problem, clients, method, devices="all", **options)


def participation_and_local_steps():
    problem, clients = make_problem(strata=True)
    held_out = make_problem(strata=True, clients=5)[1]  # fewer than devices
    options = {"participation": 0.5, "local_steps": 3, "batch_size": 4, "held_out": held_out, "record_clients": True}
    single, sharded = solve_on_one_and_all(problem, clients, RULE, **options)
    assert np.array_equal(single.history.per_client.clients, sharded.history.per_client.clients)
    return max_difference(single, sharded)


def pooled_with_memory():
    problem, clients = make_problem(constraint=POOLED)
    method = ss.SoftmaxSGM(**SETTINGS | {"tolerance": 0.01}, criterion="pooled")
    single, sharded = solve_on_one_and_all(
        problem, clients, method, participation=0.5, batch_size=None, memory=ss.Memory()
    )
    assert abs(single.pooled_constraint - sharded.pooled_constraint).max() < 1e-12
    return max_difference(single, sharded)


def robust_and_random():
    problem, clients = make_problem(objective=noisy)
    method = ss.SoftmaxSGM(**SETTINGS, robust=1)
    return max_difference(*solve_on_one_and_all(problem, clients, method, batch_size=4, replace=False))


def several_slices():
    problem, clients = make_problem()
    method = ss.Penalty(penalty=2.0, step_size=0.1, tolerance=0.05)
    return max_difference(
        *solve_on_one_and_all(problem, clients, method, batch_size=4, value_batch_size=None, client_batch_size=2)
    )


def single_precision():
    problem, clients = make_problem(dtype=np.float32)
    return max_difference(*solve_on_one_and_all(problem, clients, RULE, participation=0.5, batch_size=4))


def automatic_resumed_on_other_devices(folder):
    """An automatic run, started on eight devices, resumed on three and completed on one."""
    compiled.CHUNK_ROUNDS = 10
    problem, clients = make_problem()
    options = {"progress": False, "rounds": 120, "lower_bound": False}
    uninterrupted = flat.solve(problem, clients, ss.Automatic(tolerance=0.05, method=ss.SoftmaxSGM), **options)
    for devices, until in (("all", 30), (jax.devices()[2:5], 60), (None, 120)):
        resumed = flat.solve(
            problem,
            clients,
            ss.Automatic(tolerance=0.05, method=ss.SoftmaxSGM),
            devices=devices,
            checkpoints=ss.Checkpoints(folder, every=0),
            callbacks=[lambda chunk, until=until: chunk.round >= until],
            **options,
        )
        assert until <= len(resumed.history) < until + 10, "the run must resume from its checkpoint"
    return max_difference(uninterrupted, resumed)


def second_order():
    """SQP on five and on eight devices: clients with several widths, and a pooled constraint."""
    differences = []
    derivatives.WORTH_A_WIDTH = 1
    for constraint, criterion in ((two_constraints, None), (POOLED, "pooled")):
        problem, clients = make_problem(constraint=constraint)
        method, logging = ss.SQP(tolerance=0.05, criterion=criterion), ss.Logging(held_out=make_problem(clients=5)[1])
        single, *sharded_runs = (
            ss.solve(problem, clients, method, compute=ss.Compute(devices=devices), logging=logging)
            for devices in (None, 5, "all")
        )
        for sharded in sharded_runs:
            assert len(sharded.history) == len(single.history)
            differences += [abs(sharded.lower_bound.value - single.lower_bound.value), max_difference(single, sharded)]
    return max(differences)


def work():
    """Cost estimate of the compiler and collective operations for one device, with 16 clients on each."""
    costs = {}
    for devices in (1, 8):
        n, generator = 16 * devices, np.random.default_rng(0)
        columns = {name: generator.normal(size=(n * 30, 20)) for name in ("a", "c", "h")}
        columns["b"] = generator.normal(size=n * 30)
        clients = ss.ClientData.from_arrays(columns, np.repeat(np.arange(n), 30))
        problem = ss.Problem(least_squares, two_constraints, jnp.zeros(20))
        options = {"sampling": Sampling(batch_size=16), "logging": ss.Logging(eval_every=0)}
        prepared_request = prepare_run(
            problem, clients, (RULE,), RunOptions(rounds=5, compute=ss.Compute(devices=devices), **options)
        )
        arguments = (
            prepared_request.setup(RULE),
            prepared_request.program(5),
            prepared_request.span(0),
            jax.random.key(0),
            prepared_request.first_state(RULE),
        )
        program = compiled.CompiledEngine.run_chunk.lower(*arguments).compile()
        costs[devices] = {
            "flops": program.cost_analysis()["flops"],
            "sums": len(re.findall(r" all-reduce\(", program.as_text())),
            "others": len(
                re.findall(r" (all-gather|all-to-all|collective-permute|reduce-scatter)\(", program.as_text())
            ),
            "rows": [shard.data.shape[0] for shard in prepared_request.oracle.rows.columns["a"].addressable_shards],
        }
    return costs


def refusals():
    problem, clients = make_problem(clients=5)
    messages = {}
    bad = {"more than clients": 8, "twice": [jax.devices()[0]] * 2, "too many": 9, "none": [], "word": "most"}
    for name, devices in bad.items():
        try:
            flat.solve(problem, clients, RULE, rounds=2, devices=devices, progress=False)
        except (TypeError, ValueError) as error:
            messages[name] = str(error)
    return messages


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    folder, *names = sys.argv[1:]
    runs = {
        function.__name__: function
        for function in (
            participation_and_local_steps,
            pooled_with_memory,
            robust_and_random,
            several_slices,
            single_precision,
        )
    }
    runs |= {"automatic_resumed_on_other_devices": lambda: automatic_resumed_on_other_devices(Path(folder))}
    runs |= {"second_order": second_order, "work": work, "refusals": refusals}
    print(json.dumps({name: runs[name]() for name in names}))
