"""Run one of two processes that share a run, with two devices each, and print its results as JSON.

python two_processes.py RANK PORT FOLDER
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import softswitch as ss
from benchmarks import flat
from problems import client_data, least_squares, regression, two_constraints
from softswitch.engine import compiled


def run(clients, devices, **options):
    problem = ss.Problem(least_squares, two_constraints, jnp.zeros(4))
    method = ss.SoftmaxSGM(alpha=20.0, step_size=0.1, tolerance=0.05)
    options = {"rounds": 24, "participation": 0.6, "batch_size": 4, "eval_every": 6} | options
    return flat.solve(problem, clients, method, devices=devices, held_out=clients, progress=False, **options)


def error_message(clients, devices, **options):
    try:
        run(clients, devices, **options)
    except ValueError as error:
        return str(error)
    return None


def main(rank, port, folder):
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=rank)
    compiled.CHUNK_ROUNDS = 6
    clients = client_data(*regression(clients=11))
    written, callback_rounds = [], []
    save = ss.Checkpoints.save
    ss.Checkpoints.save = lambda self, *what: written.append(what[0].done) or save(self, *what)
    options = {"checkpoints": ss.Checkpoints(folder / "shared", every=0)}
    # The first process's callback stops the run for both; the second process's callback is not called.
    first = run(
        clients, "all", callbacks=[lambda chunk: callback_rounds.append(chunk.round) or chunk.round >= 12], **options
    )
    sharded = run(clients, "all", **options)
    # Clocks differ, so the first process's clock decides.
    time_limited = run(clients, "all", seconds=1e-9 if rank == 0 else 1e9)
    single = run(clients, None)
    difference = max(
        np.abs(getattr(single, name) - getattr(sharded, name)).max() for name in ("params", "client_constraint")
    )
    separate_checkpoints = ss.Checkpoints(folder / f"own-{rank}", every=0)
    if rank == 0:  # a run that the other process does not see
        run(clients, None, rounds=12, checkpoints=separate_checkpoints)
    locked_checkpoints = ss.Checkpoints(folder / "taken")
    with locked_checkpoints.lock() if rank == 0 else nullcontext():
        locked_error = error_message(clients, "all", checkpoints=locked_checkpoints)
    return {
        "params": np.asarray(sharded.params).tolist(),
        "difference": float(difference),
        "rounds": [len(first.history), len(sharded.history), len(time_limited.history)],
        "written": written,
        "callback rounds": callback_rounds,
        "other folder": error_message(clients, "all", checkpoints=separate_checkpoints),
        "other clients": error_message(client_data(*regression(clients=11 + rank)), "all"),
        "locked": locked_error,
        "some devices": error_message(clients, jax.devices()[:2]),
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))))
