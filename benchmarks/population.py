"""Is what is certified true? ``python -m benchmarks.population``: samples of large tables, the rest is the truth.

From a table with very many rows a sample of each client is drawn; a model is trained for its certificate on it; the
rows that were not drawn are the population, on which the model's true constraint is known. Over many draws: how often
there is an answer, how often an answer is wrong at any client, and the same without selection for the certificate:
train on three quarters of the rows, certify on one quarter. Before that, simulated thresholds whose true rate lies at
the bound are tested from the safe end and from the unsafe end.

Every class (and group) of a client has the same share in every draw; constraints are about rows of a class or group, or
about all rows with these shares.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from scipy import stats

import softswitch as ss
from benchmarks import flat
from benchmarks.tables import sources
from softswitch.certification.certify import certify
from softswitch.data.splits import DataSplit
from softswitch.problem.networks import rescale_network
from softswitch.results.certificate import is_certified
from softswitch.tables.constraints import KINDS, BuiltProblem, build_problem
from softswitch.tables.labels import BinaryLabel
from softswitch.tables.thresholds import fit_score
from softswitch_experiments.leaderboard.tables import encode_features

CONFIDENCE = 0.95
ROUNDS = 300
CLIENTS = 4


@dataclass(frozen=True)
class Population:
    """A table whose rows are taken for everything there is: its largest clients, and what is bounded."""

    table: str
    kind: str
    bound: float

    @property
    def name(self) -> str:
        """For the results."""
        return f"{self.table}, {self.kind}"


POPULATIONS = (
    Population("adult", "miss-rate", 0.3),
    Population("adult", "decision-parity", 0.15),
    Population("diamonds", "error-rate", 0.1),
    Population("flights", "false-alarm-rate", 0.1),
)
ROWS = (250, 1000)
"""Of a client, in a draw."""


@dataclass(frozen=True)
class Draw:
    """What one draw came to.

    Attributes:
        answered: there is an answer,
        wrong: which is above the bound at some client of the population;
        before: the plain way's certificate says that all clients meet,
        wrong_before: wrongly.
        objective: the answer's F on the population,
        objective_before: and the plain way's.
    """

    answered: bool
    wrong: bool
    before: bool
    wrong_before: bool
    objective: float
    objective_before: float


class Sampler:
    """Draws samples of a population."""

    def __init__(self, population: Population, rows: int) -> None:
        frame = getattr(sources, population.table)()
        largest = frame["client"].astype(str).value_counts().index[:CLIENTS]
        frame = frame[frame["client"].astype(str).isin(largest)].reset_index(drop=True)
        kept = [name for name in frame.columns if name not in ("client", "y", "group")]
        self.columns: dict[str, np.ndarray] = {
            "x": encode_features(frame, kept),
            "y": frame["y"].to_numpy().astype(np.int32),
        }
        self.alike: tuple[str, ...] = ("y",)
        if KINDS[population.kind].uses_groups:
            self.columns["group"] = frame["group"].to_numpy().astype(np.int32)
            self.alike = ("y", "group")
        self.client = frame["client"].astype(str).to_numpy()
        cells = pd.Series(self.client).str.cat([pd.Series(self.columns[name].astype(str)) for name in self.alike], " ")
        self._cells = cells.to_numpy()
        sizes = pd.Series(self.client).value_counts()
        self._wanted = {
            cell: max(1, round(rows * many / sizes[cell.rsplit(" ", len(self.alike))[0]]))
            for cell, many in cells.value_counts().items()
        }
        self.made: BuiltProblem = build_problem(population.kind, self.columns["x"].shape[1])

    def draw(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Which rows are drawn, and which are the population."""
        order = np.random.default_rng(seed).permutation(len(self._cells))
        rank = pd.Series(self._cells[order]).groupby(self._cells[order]).cumcount().to_numpy()
        chosen = np.zeros(len(order), bool)
        chosen[order] = rank < pd.Series(self._cells[order]).map(self._wanted).to_numpy()
        return chosen, ~chosen

    def of(self, rows: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Columns and owners of some rows."""
        return {name: column[rows] for name, column in self.columns.items()}, self.client[rows]


def one_score(sampler: Sampler, population: Population, seed: int) -> Draw:
    """Certify the threshold of a score on a draw, compared with the threshold by cross-validation, and the truth."""
    drawn, rest = sampler.draw(seed)
    data, owner = sampler.of(drawn)
    parts = DataSplit.from_arrays(data, owner, stratify=sampler.alike, seed=seed)
    learn = np.concatenate([np.asarray(part.rows.columns["x"]) for part in parts[:2]])
    labels = np.concatenate([np.asarray(part.rows.columns["y"]) for part in parts[:2]])
    owners = np.concatenate([np.repeat(part.names, part.sizes) for part in parts[:2]])
    learning = ss.ClientData.from_arrays({"x": learn, "y": labels}, owners)
    fitted = fit_score(population.kind, BinaryLabel(0, 1), learning, bound=population.bound, seed=seed)
    columns, owner = sampler.of(rest)
    outputs = {"x": fitted.score.outputs(columns["x"]), "y": columns["y"]}
    truth, values = ss.ClientData.from_arrays(outputs, owner), []
    for select in (True, False):
        model = fitted.choose_shift(population.kind, population.bound, parts.calibration, select=select)
        f, g = ss.evaluate(model.problem, truth, model.result.params)
        certificate = model.certificate
        meeting = [] if certificate is None else [str(c.client) for c in certificate.clients if c.verdict == "meets"]
        tested = [str(name) in meeting for name in truth.names]
        is_wrong = is_certified(certificate) and bool(g[tested].max() > population.bound)
        values.append((is_certified(certificate), is_wrong, float(f.max())))
    (answered, wrong, objective), (before, wrong_before, objective_before) = values
    return Draw(answered, wrong, before, wrong_before, objective, objective_before)


def count_wrong(draws: int, *, from_safe_end: bool, bound: float = 0.2, rows: int = 100) -> int:
    """Count the wrong certificates of a path of models whose true rates rise from well below the bound to above it.

    The models err on other rows, so that a later model may pass although an earlier one fails. From the unsafe end, the
    answer would be the first model that passes.
    """
    generator, wrong = np.random.default_rng(0), 0
    rates = np.concatenate([np.linspace(bound / 2, bound, 10, endpoint=False), np.full(10, bound + 1e-9)])
    for _ in range(draws):
        passes = stats.binom.cdf(generator.binomial(rows, rates), rows, bound) <= 1 - CONFIDENCE
        last = np.flatnonzero(passes).max(initial=-1)
        if from_safe_end:
            last = len(passes) - 1 if passes.all() else int(np.argmin(passes)) - 1
        wrong += bool(last >= 0 and rates[last] > bound)
    return wrong


def one(sampler: Sampler, population: Population, seed: int) -> Draw:
    """Train and certify on a draw, both ways, and look at the truth."""
    if KINDS[population.kind].path is not None:
        return one_score(sampler, population, seed)
    drawn, rest = sampler.draw(seed)
    data, owner = sampler.of(drawn)
    problem, strata = sampler.made.problem, sampler.made.strata
    method = ss.Automatic(tolerance=population.bound)
    run: dict[str, Any] = {"rounds": ROUNDS, "eval_every": 0, "lower_bound": False, "progress": False, "seed": seed}
    parts = DataSplit.from_arrays(data, owner, stratify=sampler.alike, strata=strata, seed=seed)
    found = flat.solve_certified(problem, parts, method, confidence=CONFIDENCE, move=rescale_network, **run)
    both = [np.concatenate([np.asarray(p.rows.columns[n]) for p in parts[:2]]) for n in parts.train.rows.columns]
    owners = np.concatenate([np.repeat(p.names, p.sizes) for p in parts[:2]])
    plain = ss.ClientData.from_arrays(dict(zip(parts.train.rows.columns, both, strict=True)), owners, strata=strata)
    before = flat.solve(problem, plain, method, **run)
    certificate = certify(before, problem, parts.calibration, CONFIDENCE)
    truth = ss.ClientData.from_arrays(*sampler.of(rest), strata=strata)
    (f, g), (f_before, g_before) = (ss.evaluate(problem, truth, result.params) for result in (found.result, before))
    assert found.certifiability is not None
    said_before, too_few = is_certified(certificate), set(map(str, found.certifiability.uncertifiable))
    tested = [str(name) not in too_few for name in truth.names]
    return Draw(
        answered=found.is_certified,
        wrong=found.is_certified and bool(g[tested].max() > population.bound),
        before=said_before,
        wrong_before=said_before and bool(g_before[tested].max() > population.bound),
        objective=float(f.max()),
        objective_before=float(f_before.max()),
    )


def rows_of(draws: list[dict[str, Any]]) -> tuple[str, ...]:
    """A table's row: answers, wrong ones of all draws, of those that claim, and whether the promise is kept."""
    told = pd.DataFrame(draws)
    many, cells = len(told), []
    for said, wrong, objective in (("answered", "wrong", "objective"), ("before", "wrong_before", "objective_before")):
        errors, answers = int(told[wrong].sum()), int(told[said].sum())
        kept = stats.binomtest(errors, many, 1 - CONFIDENCE, alternative="greater").pvalue >= 0.01
        among = f"{errors / answers:.1%}" if answers else "–"
        f = f"{told.loc[told[said], objective].median():.3f}" if answers else "–"
        cells += [f"{answers / many:.1%}", f"{errors / many:.1%}{'' if kept else ' (broken)'}", among, f]
    return tuple(cells)


def wanted(only: str, sizes: list[int]) -> Iterator[tuple[Population, int]]:
    """Return the cases with these words in their name and these numbers of rows."""
    return ((population, rows) for rows in sizes for population in POPULATIONS if only in population.name)


def main() -> None:
    """Draw, train, certify, look; what was found before is kept, and gone on with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--rows", type=int, nargs="*", default=list(ROWS), help="rows of a client in a draw")
    parser.add_argument("--save", type=Path, default=Path("build/population.json"))
    asked = parser.parse_args()
    safe, unsafe = (count_wrong(1000, from_safe_end=end) for end in (True, False))
    print(f"truth at the bound, 1,000 draws: {safe} wrong from the safe end, {unsafe} from the unsafe end")
    found: dict[str, list[dict[str, Any]]] = json.loads(asked.save.read_text()) if asked.save.exists() else {}
    asked.save.parent.mkdir(parents=True, exist_ok=True)
    header = ("answer", "wrong, of all draws", "wrong, of answers", "F", "before: answer", "wrong", "of answers", "F")
    table = Table("case", "rows a client", "draws", *header)
    for population, rows in wanted(asked.only, asked.rows):
        done = found.setdefault(f"{population.name}, {rows}", [])
        sampler = Sampler(population, rows) if len(done) < asked.draws else None
        while sampler is not None and len(done) < asked.draws:
            done.append(asdict(one(sampler, population, len(done))))
            if len(done) % 10 == 0:
                asked.save.write_text(json.dumps(found), encoding="utf-8")
        asked.save.write_text(json.dumps(found), encoding="utf-8")
        table.add_row(f"{population.name} <= {population.bound:g}", str(rows), str(len(done)), *rows_of(done))
        Console(width=170).print(table)


if __name__ == "__main__":
    main()
