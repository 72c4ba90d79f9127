"""Published methods against peers that have them: the same clients, the same settings, and how far apart they end.

All clients take part with all of their rows and one local step, in float64, so that nothing is drawn and nothing but
the method can differ.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import softswitch as ss
from benchmarks import flat
from benchmarks.peers.environments import FOLDER, python_of
from benchmarks.peers.methods.case_file import LEVEL, OFFSET
from benchmarks.peers.workers import HERE, surroundings
from softswitch import methods as methods
from softswitch.methods.base import Method

ROUNDS, STEP, TOLERANCE, CLIENTS, ROWS, PARAMETERS = 40, 0.1, 0.05, 6, 20, 4
COMMON: dict[str, Any] = {"step_size": STEP, "tolerance": TOLERANCE}
SAME = 1e-10
"""Iterates that differ by less are the same."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """A method of softswitch and the same method of a peer.

    Attributes:
        label: Name of the method in the table.
        method: The method of softswitch.
        peer: Name of the peer, as in ``--only``; also the name of its environment.
        script: Script in the folder ``methods``.
        word: Name of the method in the script.
        numbers: Settings for the script.
        within: Largest accepted distance of the final iterates. None: the methods differ, and any is accepted.
        note: Remark for the table.
    """

    label: str
    method: Method
    peer: str
    script: str
    word: str
    numbers: dict[str, float] = field(default_factory=dict)
    within: float | None = SAME
    note: str = ""


def _nu_pi(word: str, **more: Any) -> Pair:
    method = methods.NuPI(integral=0.1, proportional=0.4, smoothing=0.3, **COMMON)
    numbers = {"integral": 0.1, "proportional": 0.4, "smoothing": 0.3}
    return Pair("νPI multipliers", method, "humancompatible", "humancompatible_steps.py", word, numbers, **more)


def _agnostic(dual: float) -> Pair:
    method = methods.Agnostic(dual_step_size=dual, **COMMON)
    note = f"γ_d = {dual:g}; weights climb by exponentials there, by projection here and in the paper"
    return Pair("AFL", method, "fedjax", "fedjax_steps.py", "agnostic", {"dual": dual}, 200 * dual**2, note)


HARD = ss.HardSGM(**COMMON)
PAIRS = (
    Pair("hard SGM", HARD, "humancompatible", "humancompatible_steps.py", "switching", {"threshold": HARD.switch_at}),
    Pair(
        "augmented Lagrangian",
        methods.AugmentedLagrangian(penalty=0.5, dual_step_size=0.1, multiplier=0.3, **COMMON),
        "humancompatible",
        "humancompatible_steps.py",
        "augmented",
        {"dual": 0.1, "penalty": 0.5, "multiplier": 0.3},
        note="where μ + ρ(g − ε) < 0 its μ falls by a share of itself, ours by η_d (g − ε): neither has a weight then",
    ),
    _nu_pi("nu_pi_from_zero", note="ξ set back to 0 after its first step"),
    _nu_pi("nu_pi", within=None, note="its ξ takes in the first error, which the first step left out"),
    _agnostic(1e-3),
    _agnostic(1e-4),
)


def clients() -> dict[str, np.ndarray]:
    """Clients of the same size, whose least-squares optimum breaks the constraints, in their order.

    FedJAX fills up batches with rows of the same client, so that those of different sizes would have other gradients.
    """
    generator = np.random.default_rng(0)
    owner = np.repeat(np.arange(CLIENTS), ROWS)
    shape = (len(owner), PARAMETERS)
    a, target = generator.normal(size=shape), generator.normal(size=(CLIENTS, PARAMETERS)) * 0.4 + 1.0
    b = (a * target[owner]).sum(axis=1) + 0.1 * generator.normal(size=len(owner))
    c, h = generator.normal(size=shape) * 0.5 + 0.4, generator.normal(size=shape) * 0.3 + 0.3
    return {"a": a, "b": b, "c": c, "h": h, "owner": owner}


def ours(method: Method, columns: dict[str, np.ndarray]) -> np.ndarray:
    """Where our run ends."""

    def mean(values: Any, batch: Any) -> Any:
        return jnp.average(values, weights=batch["weight"])

    def objective(w: Any, batch: Any) -> Any:
        return mean(0.5 * (batch["a"] @ w - batch["b"]) ** 2, batch)

    def constraint(w: Any, batch: Any) -> Any:
        levels = mean(jnp.logaddexp(0, batch["c"] @ w), batch) - LEVEL, mean(batch["h"] @ w, batch) - OFFSET
        return jnp.stack(levels)

    with jax.enable_x64(True):
        rows = {name: column for name, column in columns.items() if name != "owner"}
        problem = ss.Problem(objective, constraint, jnp.zeros(PARAMETERS, jnp.float64))
        data = ss.ClientData.from_arrays(rows, client=columns["owner"])
        how: dict[str, Any] = {"batch_size": None, "memory": None, "answer": "last", "eval_every": 0}
        return np.asarray(flat.solve(problem, data, method, rounds=ROUNDS, progress=False, **how).last)


def theirs(pair: Pair, columns: dict[str, np.ndarray]) -> np.ndarray:
    """Where the peer's run ends."""
    path = FOLDER / "work" / f"methods-{os.getpid()}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        path,
        rounds=ROUNDS,
        step=STEP,
        tolerance=TOLERANCE,
        names=np.array(list(pair.numbers), dtype=str),
        values=np.array(list(pair.numbers.values()), dtype=float),
        allow_pickle=False,
        **columns,
    )
    place = HERE / "methods"
    line = [str(python_of(pair.peer).absolute()), str(place / pair.script), str(path), pair.word]
    try:
        told = subprocess.run(line, env=surroundings(1, place), capture_output=True, text=True, check=False)
    finally:
        path.unlink()
    if told.returncode:
        raise RuntimeError(f"{pair.script} {pair.word} failed: {told.stderr.strip().splitlines()[-1:]}")
    return np.array(json.loads(told.stdout.splitlines()[-1])[-1])


def compared(only: Collection[str] = ()) -> list[Row]:
    """One row a pair; raise where what should be the same is not."""
    columns, rows = clients(), []
    for pair in PAIRS:
        if only and pair.peer not in only:
            continue
        apart = float(np.abs(ours(pair.method, columns) - theirs(pair, columns)).max())
        if pair.within is not None and not apart <= pair.within:
            raise RuntimeError(f"{pair.label} and {pair.peer}'s {pair.word} are {apart:.0e} apart: not the same method")
        rows.append({"method": pair.label, "peer": pair.peer, "apart": apart, "note": pair.note})
    return rows


def table(rows: Sequence[Row]) -> Iterator[str]:
    """In Markdown, line by line."""
    yield f"| method | peer | apart after {ROUNDS} rounds | |"
    yield "|---|---|---|---|"
    for row in rows:
        yield f"| {row['method']} | {row['peer']} | {row['apart']:.0e} | {row['note']} |"
    yield ""
