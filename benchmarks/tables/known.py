"""What is known of a case before any method is run, kept in a file: it takes seconds to a minute a case to find."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.tables import reference
from benchmarks.tables.cases import Case
from softswitch.support.files import write_atomically

KEPT = Path("build") / "tables.json"
"""Relative to where the benchmark is run."""


@dataclass(frozen=True)
class Known:
    """The optimum of a case and what to compare it with.

    Attributes:
        clients: n.
        rows: of all clients.
        features: without the constant.
        optimum: F*, the smallest worst objective of a feasible model.
        lower: no feasible model has a smaller one: proven, for the convex kinds; else −∞.
        agreeing: how many of the starts ended there.
        constant: the smallest worst objective of a feasible constant prediction; infinity where none is feasible.
        free_objective: F without the constraint.
        free_constraint: G there.
        least_constraint: the smallest G of any model.
    """

    clients: int
    rows: int
    features: int
    optimum: float
    lower: float
    agreeing: int
    constant: float
    free_objective: float
    free_constraint: float
    least_constraint: float

    @property
    def binds(self) -> bool:
        """Whether the bound costs anything: the model without the constraint breaks it."""
        return self.optimum > self.free_objective


def known(case: Case, file: Path = KEPT) -> Known:
    """From the file, or found and written there. It is found anew where the data or the reference have changed."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    digest = _digest(case)
    if kept.get(case.name, {}).get("digest") == digest:
        return Known(**kept[case.name]["known"])
    found = find(case)
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}  # others may have written meanwhile
    file.parent.mkdir(parents=True, exist_ok=True)
    kept |= {case.name: {"digest": digest, "known": asdict(found)}}
    write_atomically(file, json.dumps(kept, indent=2).encode(), durable=False)
    return found


def find(case: Case) -> Known:
    """By the reference."""
    rows = reference.Logistic.of(case)
    best = reference.optimum(case, rows)
    free_objective, free_constraint = reference.unconstrained(case, rows)
    return Known(
        clients=len(np.unique(case.columns()[1])),
        rows=len(rows.y),
        features=rows.x.shape[1] - 1,
        optimum=best.objective,
        lower=best.lower,
        agreeing=best.agreeing,
        constant=float(reference.best_constant(case, rows)),
        free_objective=float(free_objective),
        free_constraint=float(free_constraint),
        least_constraint=float(reference.smallest_constraint(case, rows)),
    )


def _digest(case: Case) -> str:
    columns, client = case.columns()
    digest = hashlib.sha256(repr(case).encode() + Path(reference.__file__).read_bytes())
    for _, values in sorted(columns.items()):
        digest.update(values.tobytes())
    digest.update("\n".join(map(str, client)).encode())
    return digest.hexdigest()
