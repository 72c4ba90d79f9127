"""Several readings of the paper, with every method tuned on equal terms.

The paper leaves some settings open: batches of 32 at clients with fewer rows, the relation of the clients' step γ to
the server's η, and the meaning of a local epoch. A ``Reading`` fixes them. Under each reading all methods have grids of
the same size. Their settings are selected on some seeds and evaluated on others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from softswitch.methods.base import Method
from softswitch.results.result import Result
from softswitch_experiments.paper.experiment import Claim, Outcome, Row, Scale
from softswitch_experiments.paper.study import (
    Point,
    Runs,
    Scheme,
    Study,
    StudyTask,
    answer_rows,
    half_interval,
    mean,
    paired_difference,
    values_of,
)
from softswitch_experiments.plotting import METHODS, make_narrow_panels

FIRST_TUNING_SEED = 100
"""Settings are selected on the seeds from this one on, and evaluated on those from 0 on."""
COMPETITIVE = 1.05
"""Largest ratio of a competitive method's F to the best F of its rivals."""
PAPER, TUNED = "the paper's setting", "tuned"


def count_steps(passes: int, rows: int, batch_size: int | None) -> int:
    """Return the gradient steps of passes over ``rows`` rows. The last batch of a pass may be smaller."""
    return passes * (1 if batch_size is None else ceil(rows / batch_size))


@dataclass(frozen=True, eq=False)
class Reading:
    """One reading of the paper."""

    name: str  # name in figures and claims
    scheme: Scheme  # participation and local steps
    options: Mapping[str, Any] = field(default_factory=dict)  # options of the runs, which determine the batches
    divided: bool = False  # whether γ = η/E, as in the theorems. Otherwise γ = η

    def apply(self, method: Method) -> Method:
        """Return the method with this reading's γ."""
        size: Any = method.step_size
        return replace(method, local_step_size=size / self.scheme.local_steps if self.divided else size)


@dataclass(frozen=True)
class Contender:
    """A method, and how it is evaluated.

    Attributes:
        evaluate: Function that returns the points of runs: an iterate, and the constraint to compare with ε.
        constraint: Name of that constraint, if there are several. Only contenders with the same one are compared.
    """

    name: str  # name in figures and claims
    method: str  # name of the method
    evaluate: Callable[[Sequence[Result], Sequence[StudyTask]], list[Point]]
    constraint: str = ""


@dataclass(frozen=True)
class Entry:
    """Result of a contender on the evaluation seeds."""

    setting: str  # description of the setting
    points: list[Point]  # one point per seed
    met: bool = True  # whether the setting met the tolerance on the tuning seeds. True for the paper's setting


Selected = Mapping[str, tuple[str, bool]]
"""The setting of each contender, and whether it met the tolerance on the tuning seeds."""
Tuning = tuple[Selected, list[Row]]
Entries = dict[tuple[str, str], Entry]
"""By contender and by PAPER or TUNED."""


@dataclass(frozen=True)
class Contest:
    """A comparison of tuned methods."""

    study: Study  # the task
    paper: Mapping[str, Method]  # methods at the paper's setting, at least that of the first contender
    grids: Mapping[str, Mapping[str, Method]]  # settings of each method, by description. All grids have the same size
    contenders: tuple[Contender, ...]  # the contenders. The first of each constraint is compared with all other methods
    tuning_seeds: int  # number of seeds for tuning
    variant: Mapping[str, Any] = field(default_factory=dict)  # variant of the task
    _cache: dict[Any, Tuning] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        sizes = {method: len(grid) for method, grid in self.grids.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"all grids must have the same size, but the sizes are {sizes}")

    def tune(self, reading: Reading, scale: Scale) -> Tuning:
        """Return the selected setting of each contender, and a table of all settings. Cached by reading."""
        if (reading.name, scale) not in self._cache:
            self._cache[reading.name, scale] = self._tune(reading, scale)
        return self._cache[reading.name, scale]

    def _tune(self, reading: Reading, scale: Scale) -> Tuning:
        few = replace(scale, seeds=min(self.tuning_seeds, scale.seeds))
        methods = {
            f"{name}: {setting}": reading.apply(method)
            for name, grid in self.grids.items()
            for setting, method in grid.items()
        }
        runs = self._run(methods, reading, few, first=FIRST_TUNING_SEED, keep=False)
        tasks = self.study.tasks(few.seeds, FIRST_TUNING_SEED, **self.variant)
        selected: dict[str, tuple[str, bool]] = {}
        rows: list[Row] = []
        for contender in self.contenders:
            trials = {
                setting: contender.evaluate(runs[f"{contender.method}: {setting}"], tasks)
                for setting in self.grids[contender.method]
            }
            selected[contender.name] = select_setting(trials)
            for setting, points in trials.items():
                means = {"F": mean(points, "worst_objective"), "G": mean(points, "worst_constraint")}
                rows.append({"reading": reading.name, "method": contender.name, "setting": setting, **means})
        return selected, rows

    def evaluate(self, reading: Reading, selected: Selected, scale: Scale) -> Entries:
        """Evaluate every contender at the paper's setting and at its selected one, on the evaluation seeds."""
        methods = {f"{name}, {PAPER}": reading.apply(method) for name, method in self.paper.items()}
        for contender in self.contenders:
            setting, _ = selected[contender.name]
            methods[f"{contender.method}: {setting}"] = reading.apply(self.grids[contender.method][setting])
        runs = self._run(methods, reading, scale)
        tasks = self.study.tasks(scale.seeds, **self.variant)
        entries: Entries = {}
        for contender in self.contenders:
            name, method = contender.name, contender.method
            setting, met = selected[name]
            if method in self.paper:
                entries[name, PAPER] = Entry(PAPER, contender.evaluate(runs[f"{method}, {PAPER}"], tasks))
            entries[name, TUNED] = Entry(setting, contender.evaluate(runs[f"{method}: {setting}"], tasks), met)
        return entries

    def _run(self, methods: Mapping[str, Method], reading: Reading, scale: Scale, **how: Any) -> Runs:
        options = {"variant": self.variant, **how, **reading.options}
        # With one evaluation, the quick version reuses the compiled program of further quick figures.
        return self.study.run(methods, reading.scheme, scale, evaluations=scale.pick(0, 1), **options)

    def claims(self, reading: Reading, entries: Entries) -> list[Claim]:
        """Compare the first method with its rivals: at the paper's settings, and with tuned rivals."""
        claims: list[Claim] = []
        for constraint in dict.fromkeys(contender.constraint for contender in self.contenders):
            first, *rest = (contender for contender in self.contenders if contender.constraint == constraint)
            rivals = [contender for contender in rest if contender.method != first.method]
            where = f"{reading.name}, {constraint}" if constraint else reading.name
            paper = {one.method: entries[one.name, PAPER] for one in (first, *rivals) if one.method in self.paper}
            if len(paper) > 1:
                claims.append(
                    Claim(
                        f"{where}: at the paper's settings {first.method} meets G <= {self.study.tolerance:g} and the "
                        "others do not",
                        [method for method, entry in paper.items() if self._meets(entry)] == [first.method],
                        "; ".join(f"{method} {self._describe(entry)}" for method, entry in paper.items()),
                    )
                )
            claims += [self._is_competitive(where, first, kind, rivals, entries) for kind in (PAPER, TUNED)]
            variants = [first, *(contender for contender in rest if contender.method == first.method)]
            for contender, kind in ((first, PAPER), *((variant, TUNED) for variant in variants)):
                how = "at the paper's setting" if kind == PAPER else "tuned"
                for rival in rivals:
                    statement = (
                        f"{where}: {contender.name} {how} meets G, and {rival.method} tuned misses G or has a higher F"
                    )
                    claims.append(self._is_ahead(statement, entries[contender.name, kind], entries[rival.name, TUNED]))
        return claims

    def _is_competitive(
        self, where: str, first: Contender, kind: str, rivals: Sequence[Contender], entries: Entries
    ) -> Claim:
        """Test whether F is near the best of the tuned rivals that meet G."""
        entry = entries[first.name, kind]
        objective = mean(entry.points, "worst_objective")
        tuned = {rival.name: entries[rival.name, TUNED] for rival in rivals}
        feasible = {name: mean(e.points, "worst_objective") for name, e in tuned.items() if e.met and self._meets(e)}
        lowest = min(feasible.values(), default=np.inf)
        listed = ", ".join(f"{name} {f:.3f}" for name, f in feasible.items()) or "none of them meets G"
        how = "at the paper's setting" if kind == PAPER else "tuned"
        return Claim(
            f"{where}: {first.name} {how} is competitive, it meets G with an F at most {COMPETITIVE - 1:.0%} above "
            "that of the others tuned to meet G",
            self._meets(entry) and objective <= COMPETITIVE * lowest,
            f"F {objective:.3f}; {listed}" + (f"; {objective / lowest - 1:+.1%}" if feasible else ""),
        )

    def _is_ahead(self, statement: str, entry: Entry, rival: Entry) -> Claim:
        """Test whether the rival misses G, or has an F that is higher by more than the paired 95% interval."""
        higher, margin = paired_difference(rival.points, entry.points, "worst_objective")
        missed = not (rival.met and self._meets(rival))
        measured = (
            f"{entry.setting}: {self._describe(entry)}; against {rival.setting}: {self._describe(rival)}; the latter's "
            f"F is higher by {higher:.3f} ± {margin:.3f} (95%, paired)"
        )
        return Claim(statement, self._meets(entry) and (missed or higher > margin), measured)

    def _describe(self, entry: Entry) -> str:
        """Return F and G as means over seeds with 95% intervals, and whether G was missed."""
        f, g = (format_interval(values_of(entry.points, name)) for name in ("worst_objective", "worst_constraint"))
        missed = "" if self._meets(entry) else " (missed)"
        tuning = "" if entry.met else ", and so it does at every setting of its grid on the seeds for tuning"
        return f"F {f}, G {g}{missed}{tuning}"

    def _meets(self, entry: Entry) -> bool:
        return meets(values_of(entry.points, "worst_constraint"), self.study.tolerance)

    def draw(self, pair: Any, reading: Reading, entries: Entries) -> None:
        """Draw F and G with 95% intervals in two panels: hollow at the paper's setting, filled if tuned."""
        names = [contender.name for contender in self.contenders]
        colours = {contender.name: METHODS[contender.method] for contender in self.contenders}
        for panel, attribute, symbol in zip(pair, ("worst_objective", "worst_constraint"), "FG", strict=True):
            for (name, kind), entry in entries.items():
                values = values_of(entry.points, attribute)
                spread = half_interval(values)
                panel.errorbar(
                    np.mean(values),
                    names.index(name) + (-0.14 if kind == PAPER else 0.14),
                    xerr=spread if np.isfinite(spread) else None,
                    color=colours[name],
                    marker="o",
                    markerfacecolor="white" if kind == PAPER else colours[name],
                    capsize=3,
                )
            panel.set(ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)))
            panel.xaxis.set_major_locator(MaxNLocator(4))
            panel.set_title(f"{symbol}: {reading.name}", fontsize="medium")
            panel.set_yticklabels(names if symbol == "F" else [])
            panel.grid(axis="x", alpha=0.3)
        pair[1].set_xlim(0, None)
        pair[1].axvline(self.study.tolerance, color="black", linestyle="--", linewidth=1)


def select_setting(trials: Mapping[str, list[Point]]) -> tuple[str, bool]:
    """Return the setting with the smallest F among those that meet the tolerance, by means over seeds, and True.

    If none meets it, return the setting with the smallest G, and False.
    """
    limit = next(iter(trials.values()))[0].tolerance
    feasible = [setting for setting in trials if mean(trials[setting], "worst_constraint") <= limit]
    if feasible:
        return min(feasible, key=lambda setting: mean(trials[setting], "worst_objective")), True
    return min(trials, key=lambda setting: mean(trials[setting], "worst_constraint")), False


def meets(values: Sequence[float], limit: float) -> bool:
    """Return whether a mean over seeds is at most ``limit``, up to half its 95% interval."""
    spread = half_interval(values)
    return bool(np.mean(values) - (spread if np.isfinite(spread) else 0.0) <= limit)


def format_interval(values: Sequence[float]) -> str:
    """Return a mean over seeds and half its 95% interval as text."""
    spread = half_interval(values)
    return f"{np.mean(values):.3f}" + (f" ± {spread:.3f}" if np.isfinite(spread) else "")


def run_contest(
    contest: Contest, readings: Mapping[Reading, Reading] | Sequence[Reading], title: str, scale: Scale
) -> Outcome:
    """Tune and evaluate under every reading: two panels each, tables of both, and the claims.

    A mapping names for each reading the one under which settings are selected.
    """
    tuned_under = readings if isinstance(readings, Mapping) else {reading: reading for reading in readings}
    title += "\nworst client, mean over fresh seeds, 95% interval\n○ the paper's setting   ● tuned"
    figure, axes = make_narrow_panels(len(readings), 2, title, height=0.8 + 0.3 * len(contest.contenders))
    tables: dict[str, list[Row]] = {"tuning": [], "answers": []}
    claims: list[Claim] = []
    for pair, (reading, tuning_reading) in zip(axes, tuned_under.items(), strict=True):
        selected, rows = contest.tune(tuning_reading, scale)
        entries = contest.evaluate(reading, selected, scale)
        contest.draw(pair, reading, entries)
        tables["tuning"] += rows
        for (name, kind), entry in entries.items():
            labels = {"reading": reading.name, "method": name, "kind": kind, "setting": entry.setting}
            tables["answers"] += answer_rows(entry.points, **labels)
        claims += contest.claims(reading, entries)
    return Outcome(figure, tables, tuple(claims))
