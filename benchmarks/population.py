"""Count wrong certificates on populations whose truth is known: ``python -m benchmarks.population``.

A table with many rows is the population. A sample of each client is drawn, and a model is trained and certified on it.
The rows that were not drawn give the model's true constraint. Over many draws, the table lists the share of certified
answers, the share of wrong ones (the true constraint is above the bound at some client), and the share of certified
answers that are useful: their F on the population is smaller than that of the best constant prediction. The last
columns are the same without selection: one model is trained on three quarters of the rows and certified on the rest.
Before that, simulated thresholds whose true rate lies at the bound are tested from the safe end and the unsafe end.

Every class (and group) of a client has the same share in every draw. Constraints are about rows of a class or group, or
about all rows with these shares.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from functools import partial
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
from softswitch.engine.baselines import best_constant
from softswitch.oracles.evaluation import make_evaluator
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
    """A table, of which the largest clients are the population, and a bounded constraint."""

    table: str
    kind: str
    bound: float
    draws: int = 1000  # default

    @property
    def name(self) -> str:
        """Name in the results."""
        return f"{self.table}, {self.kind}"


POPULATIONS = (
    Population("adult", "miss-rate", 0.3),
    Population("diamonds", "error-rate", 0.1),
    Population("flights", "false-alarm-rate", 0.1),
    Population("adult", "decision-parity", 0.15, draws=200),
)
MAX_ROWS = 10_000  # largest number of rows of a client in the population


@dataclass(frozen=True)
class Answer:
    """The outcome of one way of training on one draw."""

    certified: bool
    wrong: bool  # certified, and above the bound at some certified client of the population
    useful: bool  # F on the population is smaller than that of the best constant prediction
    objective: float  # F on the population


class Sampler:
    """Draws samples of a population."""

    def __init__(self, population: Population, rows: int) -> None:
        frame = getattr(sources, population.table)()
        largest = frame["client"].astype(str).value_counts().index[:CLIENTS]
        frame = frame[frame["client"].astype(str).isin(largest)].sample(frac=1, random_state=0)
        frame = frame.groupby("client", observed=True).head(MAX_ROWS).reset_index(drop=True)
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
        """Return masks of the rows that are drawn, and of the population."""
        order = np.random.default_rng(seed).permutation(len(self._cells))
        rank = pd.Series(self._cells[order]).groupby(self._cells[order]).cumcount().to_numpy()
        chosen = np.zeros(len(order), bool)
        chosen[order] = rank < pd.Series(self._cells[order]).map(self._wanted).to_numpy()
        return chosen, ~chosen

    def select(self, rows: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return columns and clients of some rows."""
        return {name: column[rows] for name, column in self.columns.items()}, self.client[rows]


def join_learning(parts: DataSplit, columns: tuple[str, ...], strata: Any = None) -> ss.ClientData:
    """Return training and validation rows together."""
    data = {name: np.concatenate([np.asarray(part.rows.columns[name]) for part in parts[:2]]) for name in columns}
    owner = np.concatenate([np.repeat(part.names, part.sizes) for part in parts[:2]])
    return ss.ClientData.from_arrays(data, owner, strata=strata)


def judge(
    problem: ss.Problem, truth: ss.ClientData, bound: float, params: Any, constant: Any, certificate: Any
) -> Answer:
    """Compare a model and its certificate with the population."""
    certified = is_certified(certificate)
    (f, g), (f_constant, g_constant) = (ss.evaluate(problem, truth, model) for model in (params, constant))
    meets = {str(one.client) for one in certificate.clients if one.verdict == "meets"} if certified else set()
    wrong = any(str(name) in meets and above for name, above in zip(truth.names, g.max(axis=1) > bound, strict=True))
    useful = certified and bool(g_constant.max() > bound or f.max() < f_constant.max())
    return Answer(certified, wrong, useful, float(f.max()))


def answer_with_score(sampler: Sampler, population: Population, seed: int) -> list[Answer]:
    """Certify a threshold of a score on a draw, with selection and without."""
    drawn, rest = sampler.draw(seed)
    parts = DataSplit.from_arrays(*sampler.select(drawn), stratify=sampler.alike, seed=seed)
    learning, kind, bound = join_learning(parts, ("x", "y")), population.kind, population.bound
    fitted = fit_score(kind, BinaryLabel(0, 1), learning, bound=bound, seed=seed)
    columns, owner = sampler.select(rest)
    truth = ss.ClientData.from_arrays({"x": fitted.score.outputs(columns["x"]), "y": columns["y"]}, owner)
    answers = []
    for select in (True, False):
        model = fitted.choose_shift(kind, bound, parts.calibration, select=select)
        constant = model.result.baselines[0].params
        answers.append(judge(model.problem, truth, bound, model.result.params, constant, model.certificate))
    return answers


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


def answer(sampler: Sampler, population: Population, seed: int) -> list[Answer]:
    """Train and certify on a draw, with selection and without, and compare with the population."""
    if KINDS[population.kind].path is not None:
        return answer_with_score(sampler, population, seed)
    drawn, rest = sampler.draw(seed)
    problem, strata = sampler.made.problem, sampler.made.strata
    method = ss.Automatic(tolerance=population.bound)
    run: dict[str, Any] = {"rounds": ROUNDS, "eval_every": 0, "lower_bound": False, "progress": False, "seed": seed}
    parts = DataSplit.from_arrays(*sampler.select(drawn), stratify=sampler.alike, strata=strata, seed=seed)
    certified = flat.solve_certified(problem, parts, method, confidence=CONFIDENCE, move=rescale_network, **run)
    learning = join_learning(parts, tuple(sampler.columns), strata)
    plain = flat.solve(problem, learning, method, **run)
    certificate = certify(plain, problem, parts.calibration, CONFIDENCE)
    constants = partial(BinaryLabel(0, 1).constant, problem.start)
    constant = constants(best_constant(make_evaluator(problem, learning), constants, plain.method)[0])
    truth = ss.ClientData.from_arrays(*sampler.select(rest), strata=strata)
    pairs = (certified.result, certified.certificate), (plain, certificate)
    return [judge(problem, truth, population.bound, result.params, constant, test) for result, test in pairs]


def format_row(draws: list[list[dict[str, Any]]]) -> list[str]:
    """Return the cells of both ways: certified, wrong, p-value of more than 5% wrong, useful, and F of the answers."""
    cells = []
    for answers in map(pd.DataFrame, zip(*draws, strict=True)):
        wrong, certified = int(answers["wrong"].sum()), answers[answers["certified"]]
        p_value = stats.binomtest(wrong, len(answers), 1 - CONFIDENCE, alternative="greater").pvalue
        cells += [f"{len(certified) / len(answers):.1%}", f"{wrong}{' (too many)' if p_value < 0.01 else ''}"]
        cells += [f"{certified['useful'].mean():.1%}", f"{certified['objective'].median():.3f}"]
    return [cell.replace("nan%", "–").replace("nan", "–") for cell in cells]


def main() -> None:
    """Draw, train, certify and compare; the draws of an earlier run are continued."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=None, help="default: 1,000, and 200 for decision-parity")
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--rows", type=int, default=1000, help="rows of a client in a draw")
    parser.add_argument("--save", type=Path, default=Path("build/population.json"))
    given = parser.parse_args()
    safe, unsafe = (count_wrong(1000, from_safe_end=end) for end in (True, False))
    print(f"truth at the bound, 1,000 draws: {safe} wrong from the safe end, {unsafe} from the unsafe end")
    saved: dict[str, Any] = json.loads(given.save.read_text()) if given.save.exists() else {}
    given.save.parent.mkdir(parents=True, exist_ok=True)
    header = ("certified", "wrong", "useful", "F", "unselected: certified", "wrong", "useful", "F")
    table = Table("case", "rows a client", "draws", *header)
    for population in POPULATIONS:
        if given.only not in population.name:
            continue
        done = saved.setdefault(f"{population.name}, {given.rows}", [])
        wanted = population.draws if given.draws is None else given.draws
        sampler = Sampler(population, given.rows) if len(done) < wanted else None
        while sampler is not None and len(done) < wanted:
            done.append([asdict(one) for one in answer(sampler, population, len(done))])
            if len(done) % 10 == 0 or len(done) == wanted:
                given.save.write_text(json.dumps(saved), encoding="utf-8")
        table.add_row(f"{population.name} <= {population.bound:g}", str(given.rows), str(len(done)), *format_row(done))
    Console(width=170).print(table)


if __name__ == "__main__":
    main()
