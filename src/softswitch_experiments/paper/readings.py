"""The paper read in more than one way, and every method tuned on equal terms.

The paper leaves some things open: whether a batch of 32 is drawn where a client has fewer rows, how a client's step γ
relates to the server's η, what a local epoch is. A ``Reading`` is one way to fill that in. Under each of them every
method has a grid of its own, all of one size; its setting is chosen on some seeds and judged on others.
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
from softswitch.support.plotting import METHODS, narrow_panels
from softswitch_experiments.paper.experiment import Claim, Outcome, Row, Scale
from softswitch_experiments.paper.study import Point, Study, StudyTask, Way, answer_rows, half_interval, mean, paired

FIRST_TUNING_SEED = 100
"""Settings are chosen on the seeds from here on, and judged on those from 0 on."""
COMPETITIVE = 1.05
"""How many times the others' F a competitive method's may be."""
PAPER, TUNED = "the paper's setting", "tuned"
Look = Callable[[Sequence[Result], Sequence[StudyTask]], list[Point]]


def steps_of_passes(passes: int, rows: int, batch_size: int | None) -> int:
    """How many gradient steps so many passes over ``rows`` rows are; the last batch of a pass may be a short one."""
    return passes * (1 if batch_size is None else ceil(rows / batch_size))


@dataclass(frozen=True, eq=False)
class Reading:
    """One way to fill in what the paper leaves open.

    Attributes:
        name: for figures and claims.
        way: how clients take part.
        options: of the runs: which batches are drawn.
        divided: whether γ = η/E, as the theorems have it; else γ = η.
    """

    name: str
    way: Way
    options: Mapping[str, Any] = field(default_factory=dict)
    divided: bool = False

    def of(self, rule: Method) -> Method:
        """The rule with this reading's γ."""
        size: Any = rule.step_size
        return replace(rule, local_step_size=size / self.way.local_steps if self.divided else size)


@dataclass(frozen=True)
class Contender:
    """A method, and what of it is judged.

    Attributes:
        name: for figures and claims.
        method: which method it is.
        look: takes the points from the runs: which iterate, and held against the tolerance by which constraint.
        judged_by: that constraint, where there are several; contenders are compared within one.
    """

    name: str
    method: str
    look: Look
    judged_by: str = ""


@dataclass(frozen=True)
class Entry:
    """What a contender reached on the seeds that judge.

    Attributes:
        setting: in words.
        points: one a seed.
        met: whether the setting met the tolerance where it was chosen; the paper's own was not chosen.
    """

    setting: str
    points: list[Point]
    met: bool = True


Chosen = Mapping[str, tuple[str, bool]]
"""Each contender's setting, and whether it met the tolerance on the seeds that it was chosen on."""
Tuned = tuple[Chosen, list[Row]]
Entries = dict[tuple[str, str], Entry]
"""By contender and by PAPER or TUNED."""


@dataclass(frozen=True)
class Contest:
    """Methods on equal terms.

    Attributes:
        study: the task.
        paper: methods at the paper's setting: the first contender's at least.
        grids: the settings to choose from, by method and words; as many for each method.
        contenders: what is judged; the first of each constraint is compared with those of other methods.
        tuning_seeds: on how many seeds settings are chosen.
        variant: of the task.
    """

    study: Study
    paper: Mapping[str, Method]
    grids: Mapping[str, Mapping[str, Method]]
    contenders: tuple[Contender, ...]
    tuning_seeds: int
    variant: Mapping[str, Any] = field(default_factory=dict)
    _tuned: dict[Any, Tuned] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        sizes = {method: len(grid) for method, grid in self.grids.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"every method needs a grid of the same size, but the sizes are {sizes}")

    def tune(self, reading: Reading, scale: Scale) -> Tuned:
        """Each contender's setting; and every setting's means, as a table. Done once a reading."""
        if (reading.name, scale) not in self._tuned:
            self._tuned[reading.name, scale] = self._tune(reading, scale)
        return self._tuned[reading.name, scale]

    def _tune(self, reading: Reading, scale: Scale) -> Tuned:
        few = replace(scale, seeds=min(self.tuning_seeds, scale.seeds))
        rules = {f"{m}: {words}": reading.of(rule) for m, grid in self.grids.items() for words, rule in grid.items()}
        found = self._runs(rules, reading, few, first=FIRST_TUNING_SEED, keep=False)
        own = self.study.tasks(few.seeds, FIRST_TUNING_SEED, **self.variant)
        chosen: dict[str, tuple[str, bool]] = {}
        rows: list[Row] = []
        for contender in self.contenders:
            tried = {
                words: contender.look(found[f"{contender.method}: {words}"], own)
                for words in self.grids[contender.method]
            }
            chosen[contender.name] = best(tried)
            for words, points in tried.items():
                levels = {"F": mean(points, "worst_objective"), "G": mean(points, "worst_constraint")}
                rows.append({"reading": reading.name, "method": contender.name, "setting": words, **levels})
        return chosen, rows

    def judge(self, reading: Reading, chosen: Chosen, scale: Scale) -> Entries:
        """Every contender at the paper's setting and at its own best, on seeds that it was not tuned on."""
        rules = {f"{m}, {PAPER}": reading.of(rule) for m, rule in self.paper.items()}
        for one in self.contenders:
            words, _ = chosen[one.name]
            rules[f"{one.method}: {words}"] = reading.of(self.grids[one.method][words])
        found = self._runs(rules, reading, scale)
        own = self.study.tasks(scale.seeds, **self.variant)
        entries: Entries = {}
        for one in self.contenders:
            words, met = chosen[one.name]
            if one.method in self.paper:
                entries[one.name, PAPER] = Entry(PAPER, one.look(found[f"{one.method}, {PAPER}"], own))
            entries[one.name, TUNED] = Entry(words, one.look(found[f"{one.method}: {words}"], own), met)
        return entries

    def _runs(
        self, rules: Mapping[str, Method], reading: Reading, scale: Scale, **how: Any
    ) -> dict[str, tuple[Result, ...]]:
        # The quick version looks at all data once: then it is the program of the other quick figures.
        looks = scale.pick(0, 1)
        return self.study.runs(
            rules, reading.way, scale, variant=self.variant, evaluations=looks, **how, **reading.options
        )

    def claims(self, reading: Reading, entries: Entries) -> list[Claim]:
        """The first method against the others: at the paper's settings, and against tuned ones untuned and tuned."""
        found: list[Claim] = []
        for judged_by in dict.fromkeys(one.judged_by for one in self.contenders):
            first, *rest = (one for one in self.contenders if one.judged_by == judged_by)
            rivals = [one for one in rest if one.method != first.method]
            where = f"{reading.name}, {judged_by}" if judged_by else reading.name
            shown = {one.method: entries[one.name, PAPER] for one in (first, *rivals) if one.method in self.paper}
            meeting = [method for method, entry in shown.items() if self._meets(entry)]
            if len(shown) > 1:
                found.append(
                    Claim(
                        f"{where}: at the paper's settings {first.method} meets G <= {self.study.tolerance:g} and the "
                        "others do not",
                        meeting == [first.method],
                        "; ".join(f"{method} {self._told(entry)}" for method, entry in shown.items()),
                    )
                )
            found += [self._competitive(where, first, kind, rivals, entries) for kind in (PAPER, TUNED)]
            own = [one for one in self.contenders if one.judged_by == judged_by and one.method == first.method]
            for one, kind in ((first, PAPER), *((one, TUNED) for one in own)):
                how = "at the paper's setting" if kind == PAPER else "tuned"
                for other in rivals:
                    statement = (
                        f"{where}: {one.name} {how} meets G, and {other.method} tuned misses G or has a higher F"
                    )
                    found.append(self._ahead(statement, entries[one.name, kind], entries[other.name, TUNED]))
        return found

    def _competitive(
        self, where: str, first: Contender, kind: str, rivals: Sequence[Contender], entries: Entries
    ) -> Claim:
        """Near the best of the others, each at its own best setting; those that miss G do not count."""
        own = entries[first.name, kind]
        level = mean(own.points, "worst_objective")
        others = {one.name: entries[one.name, TUNED] for one in rivals}
        meeting = {name: mean(e.points, "worst_objective") for name, e in others.items() if e.met and self._meets(e)}
        lowest = min(meeting.values(), default=np.inf)
        told = ", ".join(f"{name} {f:.3f}" for name, f in meeting.items()) or "none of them meets G"
        how = "at the paper's setting" if kind == PAPER else "tuned"
        return Claim(
            f"{where}: {first.name} {how} is competitive, it meets G with an F at most {COMPETITIVE - 1:.0%} above "
            "that of the others tuned to meet G",
            self._meets(own) and level <= COMPETITIVE * lowest,
            f"F {level:.3f}; {told}" + (f"; {level / lowest - 1:+.1%}" if meeting else ""),
        )

    def _ahead(self, statement: str, own: Entry, other: Entry) -> Claim:
        """Higher: by more than the 95% interval of the paired difference. Missed: see ``meets``."""
        higher, margin = paired(other.points, own.points, "worst_objective")
        missed = not (other.met and self._meets(other))
        measured = (
            f"{own.setting}: {self._told(own)}; against {other.setting}: {self._told(other)}; the latter's F is higher "
            f"by {higher:.3f} ± {margin:.3f} (95%, paired)"
        )
        return Claim(statement, self._meets(own) and (missed or higher > margin), measured)

    def _told(self, entry: Entry) -> str:
        """F and G as means over seeds with 95% intervals, and whether G was missed."""
        f, g = ([getattr(point, name) for point in entry.points] for name in ("worst_objective", "worst_constraint"))
        missed = "" if self._meets(entry) else " (missed)"
        beside = "" if entry.met else ", and so it does at every setting of its grid on the seeds for tuning"
        return f"F {interval(f)}, G {interval(g)}{missed}{beside}"

    def _meets(self, entry: Entry) -> bool:
        return meets([point.worst_constraint for point in entry.points], self.study.tolerance)

    def rows(self, reading: Reading, entries: Entries) -> list[Row]:
        """A row a contender, setting and seed."""
        return [
            row
            for (name, kind), entry in entries.items()
            for row in answer_rows(entry.points, reading=reading.name, method=name, kind=kind, setting=entry.setting)
        ]

    def draw(self, pair: Any, reading: Reading, entries: Entries) -> None:
        """F and G with 95% intervals in two panels side by side: hollow at the paper's setting, filled where tuned."""
        names = [one.name for one in self.contenders]
        method = {one.name: one.method for one in self.contenders}
        for panel, number, word in zip(pair, ("worst_objective", "worst_constraint"), "FG", strict=True):
            for (name, kind), entry in entries.items():
                values = [getattr(point, number) for point in entry.points]
                place = names.index(name) + (-0.14 if kind == PAPER else 0.14)
                spread = half_interval(values)
                panel.errorbar(
                    np.mean(values),
                    place,
                    xerr=spread if np.isfinite(spread) else None,
                    color=METHODS[method[name]],
                    marker="o",
                    markerfacecolor="white" if kind == PAPER else METHODS[method[name]],
                    capsize=3,
                )
            panel.set(ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)))
            panel.xaxis.set_major_locator(MaxNLocator(4))
            panel.set_title(f"{word}: {reading.name}", fontsize="medium")
            panel.set_yticklabels(names if word == "F" else [])
            panel.grid(axis="x", alpha=0.3)
        pair[1].set_xlim(0, None)
        pair[1].axvline(self.study.tolerance, color="black", linestyle="--", linewidth=1)


def best(tried: Mapping[str, list[Point]]) -> tuple[str, bool]:
    """The setting with the smallest F among those that meet the tolerance, by means over seeds, and True.

    Where none meets it: the one with the smallest G, and False.
    """
    limit = next(iter(tried.values()))[0].tolerance
    meeting = [words for words in tried if mean(tried[words], "worst_constraint") <= limit]
    if meeting:
        return min(meeting, key=lambda words: mean(tried[words], "worst_objective")), True
    return min(tried, key=lambda words: mean(tried[words], "worst_constraint")), False


def meets(values: Sequence[float], limit: float) -> bool:
    """Whether a mean over seeds is at most ``limit``, or above it by no more than its 95% interval."""
    spread = half_interval(values)
    return bool(np.mean(values) - (spread if np.isfinite(spread) else 0.0) <= limit)


def interval(values: Sequence[float]) -> str:
    """A mean over seeds and half its 95% interval."""
    spread = half_interval(values)
    return f"{np.mean(values):.3f}" + (f" ± {spread:.3f}" if np.isfinite(spread) else "")


def contested(
    contest: Contest, readings: Mapping[Reading, Reading] | Sequence[Reading], title: str, scale: Scale
) -> Outcome:
    """Tune and judge under every reading: a row of two panels each, tables of both, and the claims.

    Where tuning under a reading takes too long, a mapping says under which other one settings are chosen.
    """
    chosen_under = readings if isinstance(readings, Mapping) else {reading: reading for reading in readings}
    shown = f"{title}\nworst client, mean over fresh seeds, 95% interval\n○ the paper's setting   ● tuned"
    figure, axes = narrow_panels(len(readings), 2, shown, height=0.8 + 0.3 * len(contest.contenders))
    tried: list[Row] = []
    answers: list[Row] = []
    claims: list[Claim] = []
    for pair, (reading, other) in zip(axes, chosen_under.items(), strict=True):
        chosen, rows = contest.tune(other, scale)
        entries = contest.judge(reading, chosen, scale)
        contest.draw(pair, reading, entries)
        tried, answers = tried + rows, answers + contest.rows(reading, entries)
        claims += contest.claims(reading, entries)
    return Outcome(figure, {"tuning": tried, "answers": answers}, tuple(claims))
