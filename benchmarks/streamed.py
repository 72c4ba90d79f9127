"""Rows read from files while rounds are computed, against the same rows in memory; and 10⁹ rows by a function.

``python -m benchmarks.streamed [--rows 300000] [--rounds 100] [--generated 1000000000]``
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import softswitch as ss
from benchmarks import flat
from softswitch.engine import compiled

FEATURES, CLIENTS, BATCH = 50, 100, 64
CHUNK = 20
"""Rounds of a chunk: the clock is looked at after each."""
MIB = 2**20


def squares(w: Any, batch: dict[str, Any]) -> Any:
    """The objective: a linear model's mean square."""
    return jnp.average((batch["x"] @ w - batch["y"]) ** 2, weights=batch["weight"])


def level(w: Any, batch: dict[str, Any]) -> Any:
    """The constraint: its mean prediction."""
    return jnp.average(batch["x"] @ w, weights=batch["weight"])


def network(w: Any, batch: dict[str, Any]) -> Any:
    """The objective of a network of two hidden layers."""
    hidden = jnp.tanh(jnp.tanh(batch["x"] @ w["in"]) @ w["between"])
    return jnp.average((hidden @ w["out"] - batch["y"]) ** 2, weights=batch["weight"])


def network_level(w: Any, batch: dict[str, Any]) -> Any:
    """Its mean prediction."""
    hidden = jnp.tanh(jnp.tanh(batch["x"] @ w["in"]) @ w["between"])
    return jnp.average(hidden @ w["out"], weights=batch["weight"])


def problems(rounds: int) -> dict[str, tuple[ss.Problem, int]]:
    """One that costs next to nothing, so that reading is all there is, and one that costs something; with rounds."""
    draws, wide = np.random.default_rng(0), 128
    start = {
        "in": draws.normal(size=(FEATURES, wide)) / FEATURES**0.5,
        "between": draws.normal(size=(wide, wide)) / wide**0.5,
        "out": np.zeros(wide),
    }
    return {
        f"linear, {FEATURES} features": (ss.Problem(squares, level, jnp.zeros(FEATURES)), rounds),
        f"network, {FEATURES} → {wide} → {wide} → 1": (
            ss.Problem(network, network_level, {key: jnp.asarray(one, jnp.float32) for key, one in start.items()}),
            max(CHUNK, rounds // 5),
        ),
    }


RULE = ss.SoftmaxSGM(alpha=20, step_size=0.01, tolerance=0.1)


def against_memory(rows: int, rounds: int, repeats: int) -> None:
    """Print rows a second of rounds alone, in turns: by the clock, and by the processors' time of all threads."""
    draws = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        x = draws.standard_normal((rows, FEATURES), dtype=np.float32)
        columns = {"x": x, "y": x[:, :5].sum(axis=1)}
        owner = np.sort(draws.integers(CLIENTS, size=rows))
        for key, column in columns.items():
            np.save(Path(folder) / f"{key}.npy", column)
        mapped = {key: Path(folder) / f"{key}.npy" for key in columns}
        sources: dict[str, Any] = {
            "in memory": ss.ClientData.from_arrays(columns, owner),
            "mapped files": ss.StreamedData.from_arrays(mapped, owner),
            "mapped files, rows in no order": ss.StreamedData.from_arrays(mapped, draws.permutation(owner)),
        }
        del x, columns
        a_round = 2 * CLIENTS * BATCH
        print(
            f"{rows:,} rows of {sources['mapped files'].row_bytes} bytes, {CLIENTS} clients, {a_round:,} rows a round "
            f"on {jax.devices()[0].device_kind}"
        )
        for name, (problem, many) in problems(rounds).items():
            taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in sources}
            for turn in range(repeats + 1):
                for kind, data in sources.items():
                    spent = _spent(problem, data, many)
                    if turn:  # the first is to compile
                        taken[kind].append(spent)
            clock, processor = (
                {kind: statistics.median(one[i] for one in taken[kind]) for kind in sources} for i in (0, 1)
            )
            for kind in sources:
                print(
                    f"  {name}, {kind}: {a_round / clock[kind] / 1e6:.2f} million rows a second, "
                    f"{clock[kind] / clock['in memory']:.2f}× the time in memory, "
                    f"{processor[kind] / processor['in memory']:.2f}× the processors' time",
                    flush=True,
                )


def _spent(problem: ss.Problem, data: Any, rounds: int) -> tuple[float, float]:
    """Seconds a round, and the processors': from the first chunk's end to the last's, so that nothing else counts."""
    marks: list[tuple[int, float, float]] = []
    how: dict[str, Any] = {"batch_size": BATCH, "eval_every": 0, "answer": "last", "progress": False}
    watch = [lambda chunk: marks.append((chunk.round, time.perf_counter(), time.process_time()))]
    flat.solve(problem, data, RULE, rounds=CHUNK + rounds, callbacks=watch, **how)
    (first, *before), (last, *after) = marks[0], marks[-1]
    seconds, processor = ((end - begin) / (last - first) for begin, end in zip(before, after, strict=True))
    return seconds, processor


def hashed(clients: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers in [-1, 1) that depend on client and row alone."""
    mixed = (clients.astype(np.uint64) << np.uint64(32)) + rows.astype(np.uint64)
    columns = []
    for salt in range(1, 6):
        bits = (mixed + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
        bits ^= bits >> np.uint64(29)
        bits *= np.uint64(0xBF58476D1CE4E5B9)
        columns.append((bits >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - 1)
    return {"x": np.stack(columns[:4], axis=1), "y": columns[4]}


def generated(rows: int, rounds: int, max_evaluation_rows: int | None) -> None:
    """Print what rounds on so many rows take, which a function makes, and what memory they take."""
    clients = 1000
    data = ss.StreamedData.from_function(
        hashed, np.full(clients, rows // clients), max_evaluation_rows=max_evaluation_rows
    )
    problem = ss.Problem(squares, level, jnp.zeros(4))
    before = _peak()
    began = time.perf_counter()
    found = flat.solve(problem, data, RULE, rounds=rounds, batch_size=BATCH, eval_every=0, progress=False)
    judged = "all" if max_evaluation_rows is None else f"{max_evaluation_rows:,} a client"
    print(
        f"{rows:,} rows by a function, {data.row_bytes * rows / 1e9:.0f} GB: {rounds} rounds of "
        f"{2 * clients * BATCH:,} rows, judged by {judged}: {time.perf_counter() - began:.1f} s, peak memory "
        f"{_peak() / MIB:.0f} MiB, {before / MIB:.0f} MiB before; F = {found.worst_objective:.4f}",
        flush=True,
    )


def _peak() -> int:
    """The most memory that this process has held so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--generated", type=int, default=10**9, help="0: leave it out")
    parser.add_argument("--judge-all", action="store_true", help="go through all generated rows, twice")
    chosen = parser.parse_args()
    if chosen.generated:  # first: what memory it takes is not to be hidden by what others took
        generated(chosen.generated, 20, None if chosen.judge_all else 1000)
    if chosen.rows:
        compiled.CHUNK_ROUNDS = CHUNK
        against_memory(chosen.rows, chosen.rounds, chosen.repeats)
