"""One of two processes that compute one run together, with two devices each: what it ends with, as JSON.

python two_processes.py PLACE PORT FOLDER
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


def refused(clients, devices, **options):
    try:
        run(clients, devices, **options)
    except ValueError as error:
        return str(error)
    return None


def main(place, port, folder):
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=place)
    compiled.CHUNK_ROUNDS = 6
    clients = client_data(*regression(clients=11))
    written, heard = [], []
    save = ss.Checkpoints.save
    ss.Checkpoints.save = lambda self, *what: written.append(what[0].done) or save(self, *what)
    kept = {"checkpoints": ss.Checkpoints(folder / "shared", every=0)}
    # What the first process's callback says ends the run for both; the other's is not called.
    first = run(clients, "all", callbacks=[lambda chunk: heard.append(chunk.round) or chunk.round >= 12], **kept)
    many = run(clients, "all", **kept)
    # No clock is like another: the first process's counts.
    short = run(clients, "all", seconds=1e-9 if place == 0 else 1e9)
    one = run(clients, None)
    apart = max(np.abs(getattr(one, name) - getattr(many, name)).max() for name in ("params", "client_constraint"))
    own = ss.Checkpoints(folder / f"own-{place}", every=0)
    if place == 0:  # one that the other process does not see
        run(clients, None, rounds=12, checkpoints=own)
    theirs = ss.Checkpoints(folder / "taken")
    with theirs.lock() if place == 0 else nullcontext():
        taken = refused(clients, "all", checkpoints=theirs)
    return {
        "params": np.asarray(many.params).tolist(),
        "apart": float(apart),
        "rounds": [len(first.history), len(many.history), len(short.history)],
        "written": written,
        "heard": heard,
        "other folder": refused(clients, "all", checkpoints=own),
        "other clients": refused(client_data(*regression(clients=11 + place)), "all"),
        "taken": taken,
        "half": refused(clients, jax.devices()[:2]),
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))))
