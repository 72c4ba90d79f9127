"""Many runs: each by itself on every core, or all of one kind side by side as one program."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from softswitch.engine import compiled
from softswitch.engine.loop import finish, run
from softswitch.engine.request import Request
from softswitch.methods.base import Method
from softswitch.oracles.options import Logging
from softswitch.results.callbacks import Chunk, ProgressBar
from softswitch.results.result import Result
from softswitch.support.processes import thread_count

THREAD_SETTINGS: tuple[tuple[Any, str], ...] = (
    (jax.enable_x64, "jax_enable_x64"),
    (jax.default_device, "jax_default_device"),
    (jax.default_matmul_precision, "jax_default_matmul_precision"),
    (jax.default_prng_impl, "jax_default_prng_impl"),
)
"""What JAX keeps for each thread and a result depends on: handed on to the threads of a sweep."""


class Share(NamedTuple):
    """The seeds that run on one federation."""

    request: Request
    seeds: tuple[int, ...]


Results = tuple[tuple[Result, ...], ...]
"""A result for every rule and, within, every seed."""


def run_all(
    shares: Sequence[Share], methods: Sequence[Method], together: bool | None, progress: bool | None
) -> Results:
    """Run every rule with every seed: side by side, or one by one; None decides by the device."""
    compiles = all(share.request.oracle.is_compiled for share in shares)
    if together is None:
        together = jax.default_backend() != "cpu" and compiles
    elif together and not compiles:
        raise ValueError("together must be False or None where clients cannot be compiled, but is True")
    runs = len(methods) * sum(len(share.seeds) for share in shares)
    with ProgressBar(runs * shares[0].request.rounds, progress) as bar:
        return (_side_by_side if together else _one_by_one)(shares, methods, bar)


def _one_by_one(shares: Sequence[Share], methods: Sequence[Method], bar: ProgressBar) -> Results:
    """Each run by itself, on as many threads as there are cores: XLA works outside Python's lock."""
    interrupted = Event()
    runs = [(share, seed) for share in shares for seed in share.seeds]
    done: dict[tuple[int, int], int] = {}

    def one(r: int, s: int) -> Result:
        def watch(chunk: Chunk) -> bool:
            done[r, s] = chunk.round
            bar.update(sum(done.values()), f"{len(methods)} rules × {len(runs)} seeds")
            return interrupted.is_set()

        with ExitStack() as contexts:  # JAX's settings belong to a thread
            for enter, value in settings:
                contexts.enter_context(enter(value))
            share, seed = runs[s]
            return run(share.request, methods[r], seed, Logging(callbacks=(watch,), progress=False))

    settings = [(enter, getattr(jax.config, name)) for enter, name in THREAD_SETTINGS]
    compiles = all(share.request.oracle.is_compiled for share in shares)
    with ThreadPoolExecutor(
        thread_count() if compiles else 1
    ) as pool:  # other clients have one model, and one at a time
        waiting = [[pool.submit(one, r, s) for s in range(len(runs))] for r in range(len(methods))]
        try:
            return tuple(tuple(future.result() for future in row) for row in waiting)
        except BaseException:
            interrupted.set()  # the runs under way end with their chunk
            pool.shutdown(cancel_futures=True)
            raise


def _side_by_side(shares: Sequence[Share], methods: Sequence[Method], bar: ProgressBar) -> Results:
    """All runs of one kind on one data set as one program."""
    groups: dict[Any, list[int]] = {}
    for r, method in enumerate(methods):
        groups.setdefault(jax.tree.structure(method), []).append(r)
    found: dict[int, tuple[Result, ...]] = dict.fromkeys(range(len(methods)), ())
    rounds_done = 0
    for share in shares:
        for members in groups.values():
            runs = len(members) * len(share.seeds)

            def watch(done: int, size: int = len(members), runs: int = runs, before: int = rounds_done) -> None:
                bar.update(before + done * runs, f"{size} rules × {runs // size} seeds")

            results = _one_kind(share, [methods[r] for r in members], watch)
            for r, own in zip(members, results, strict=True):
                found[r] += own
            rounds_done += share.request.rounds * runs
    return tuple(found[r] for r in range(len(methods)))


def _one_kind(share: Share, methods: Sequence[Method], watch: Callable[[int], None]) -> list[tuple[Result, ...]]:
    """Run rules of one structure with all seeds of a data set; results by rule, then seed."""
    request, seeds = share
    stacked = jax.tree.map(lambda *numbers: jnp.asarray(numbers), *methods)
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    length = compiled.chunk_length(request.oracle, len(seeds))
    begin = jax.vmap(request.first_state)(stacked)
    states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(seeds), *leaf.shape)), begin)
    records = []
    began = time.perf_counter()
    for first in range(0, request.rounds, length):
        program = request.program(length)
        states, record = compiled.run_many(request.setup(stacked), program, request.span(first), keys, states)
        records.append(jax.tree.map(np.asarray, record))
        watch(min(first + length, request.rounds))
    seconds = (time.perf_counter() - began) / (len(methods) * len(seeds))
    states = jax.tree.map(np.asarray, states)

    def one(r: int, s: int) -> Result:
        state, own = jax.tree.map(lambda leaf: leaf[s, r], (states, records))
        return finish(request, methods[r], seeds[s], state, own, request.rounds, False, seconds)

    return [tuple(one(r, s) for s in range(len(seeds))) for r in range(len(methods))]
