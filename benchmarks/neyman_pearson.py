"""solve() against sequential PyTorch loops of the same algorithm."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

import softswitch as ss
from benchmarks import flat
from benchmarks.timing import seconds_in_turns
from benchmarks.torch_loop import Client, Setting, federated, lean
from softswitch_experiments.tasks.neyman_pearson import breast_cancer
from softswitch_experiments.tasks.paper_settings import RUN, SOFTMAX_SWITCH, steps

RULE = ss.SoftmaxSGM(alpha=6400.0, tolerance=0.1, **steps(0.5), **SOFTMAX_SWITCH)
LOOP_ROUNDS = 100  # the loops' time is linear in the rounds: a tenth of the run is timed, and counted ten times
ROUNDS = 1000


def torch_clients(data: ss.ClientData) -> list[Client]:
    """The same rows as tensors."""
    x, y = (torch.from_numpy(np.array(data.rows.columns[key])).float() for key in "xy")
    sizes = data.sizes.tolist()
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def against_torch(repeats: int = 7) -> None:
    """Print how many times faster solve() is than each loop, compiled beforehand."""
    task = breast_cancer(20, seed=0)
    clients = torch_clients(task.train)
    print(f"Neyman–Pearson, n = 20, K = {ROUNDS}, batches of 32 ({torch.get_num_threads()} PyTorch threads)")
    for local_steps, participation in ((1, 1.0), (5, 0.5)):
        how = RUN | {"batch_size": 32, "local_steps": local_steps, "participation": participation}
        setting = Setting(LOOP_ROUNDS, local_steps, int(20 * participation))
        taken = seconds_in_turns(
            {
                "solve": partial(flat.solve, task.problem, task.train, RULE, rounds=ROUNDS, **how),
                "federated": partial(federated, clients, setting),
                "lean": partial(lean, clients, setting),
            },
            repeats,
        )
        usual, bare = (taken[loop] * ROUNDS / LOOP_ROUNDS for loop in ("federated", "lean"))
        print(
            f"  E = {local_steps}, m = {setting.participants}: solve {taken['solve'] * 1e3:.0f} ms; "
            f"usual PyTorch loop {usual:.2f} s, {usual / taken['solve']:.0f}×; "
            f"lean loop {bare:.2f} s, {bare / taken['solve']:.0f}×"
        )
