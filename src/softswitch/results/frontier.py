"""The trade-off curve: F and other metrics against the bound, and the bounds that are certified."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rich.table import Table

from softswitch.results.certificate import Certificate
from softswitch.results.json_numbers import JsonRecord, nan_if_none
from softswitch.results.result import Result
from softswitch.support.text import escape_row, join_first, render_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.6, 2.9
NUMBERS = ("objective", "constraint", "chosen_objective", "other_objective", "other_constraint", "constant")
RATIO_TOLERANCE = 1e-6
SMALL_SHARE, SMALL = 1e-3, 1e-4  # a relative and an absolute difference of F below these is negligible


class BoundOutcome(StrEnum):
    """The outcome of a bound.

    CERTIFIED: the model meets the bound at every client on new data, jointly with all other certified models. FAILED:
    the model was tested and did not pass. LATER: testing stopped at a model that did not pass, before this one.
    TOO_FEW: no model could be certified for this bound with these rows. NOT_REACHED: no model meets the bound on the
    training rows.
    """

    CERTIFIED = "certified"
    FAILED = "not certified"
    LATER = "not tested"
    TOO_FEW = "too few rows"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, eq=False)
class FrontierPoint(JsonRecord):
    """A bound, its cost on the training rows, and the model selected for new data.

    Attributes:
        bound: The bound on the constraint.
        outcome: Whether the selected model is certified, or why not.
        objective: The smallest F, the worst client's objective, within the bound on the training rows.
        constraint: G, the largest constraint of any client, of that model.
        chosen_objective: F of the selected model on the training rows.
        other_objective: F of the selected model on the validation rows.
        other_constraint: G of the selected model on the validation rows.
        constant: F of the best constant prediction within the bound on the training rows; NaN without one.
        measures: Further metrics of the selected model on the validation rows.
        model: Description of the selected model.
        failing_clients: Labels of the clients that failed the test, if the model was tested.
        result: The run with the selected model as its answer. It is not saved.
        certificate: The certificate of that model, if it was tested. It is not saved here.
    """

    bound: float
    outcome: BoundOutcome
    objective: float
    constraint: float
    chosen_objective: float
    other_objective: float
    other_constraint: float
    constant: float = math.nan
    measures: dict[str, float] = field(default_factory=dict)
    model: str = ""
    failing_clients: tuple[str, ...] = ()
    result: Result | None = field(default=None, compare=False)
    certificate: Certificate | None = field(default=None, compare=False)

    @property
    def reached(self) -> bool:
        """Whether a model meets the bound on the training rows."""
        return self.constraint <= self.bound

    @property
    def is_for_certification(self) -> bool:
        """Whether the model was selected for certification, for which it may have to be conservative."""
        return self.outcome in (BoundOutcome.CERTIFIED, BoundOutcome.FAILED, BoundOutcome.LATER)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FrontierPoint:
        """Restore a point from ``to_dict``, with NaN for None."""
        restored = {name: float(nan_if_none(values[name])) for name in ("bound", *NUMBERS)}
        return cls(
            **restored,  # type: ignore[arg-type]
            outcome=BoundOutcome(values["outcome"]),
            measures={name: float(nan_if_none(value)) for name, value in values["measures"].items()},
            model=values["model"],
            failing_clients=tuple(values["failing_clients"]),
        )


@dataclass(frozen=True)
class SmallestConstraint(JsonRecord):
    """The smallest constraint that was reached on the training rows.

    Attributes:
        constraint: G, the largest of any client.
        objective: F of that model.
        constant: The smallest G of a constant prediction; NaN if none was evaluated.
    """

    constraint: float
    objective: float
    constant: float = math.nan

    @property
    def is_trivial(self) -> bool:
        """Whether a constant prediction also reaches it."""
        return self.constant <= self.constraint


@dataclass(frozen=True, eq=False)
class Frontier:
    """Models trained for several bounds, from the loosest to the tightest.

    The certificates hold jointly: the probability that any certified model exceeds its bound at any client is at most
    1 − confidence.

    Attributes:
        points: One point per bound, the loosest first.
        smallest: The smallest constraint that was reached on the training rows.
        confidence: Confidence of the certificates.
        clients: Number of clients.
        shares: Whether the constraint is a rate or a difference of rates, shown in percent.
        approximate: Whether the certificates are approximate because the range of the constraint is unknown.
        certifiability: What the certification rows could show at best at the tightest bound.
        requested: The bound in the settings, if any.
        planned_tests: Maximum number of models to test.
        tested: The tests in order: the bound, and whether the model passed.
    """

    points: tuple[FrontierPoint, ...]
    smallest: SmallestConstraint
    confidence: float
    clients: int
    shares: bool = False
    approximate: bool = False
    certifiability: str = ""
    requested: float | None = None
    planned_tests: int = 0
    tested: tuple[tuple[float, bool], ...] = ()

    @property
    def certified(self) -> tuple[FrontierPoint, ...]:
        """The points whose models are certified."""
        return tuple(point for point in self.points if point.outcome is BoundOutcome.CERTIFIED)

    @property
    def smallest_certified(self) -> float | None:
        """The smallest certified bound; None if there is none."""
        return min((point.bound for point in self.certified), default=None)

    def format_bound(self, bound: float) -> str:
        """Return a bound as text; a rate of 0.05 is written 5%."""
        return f"{100 * bound:.4g}%" if self.shares else f"{bound:.4g}"

    @property
    def summary(self) -> list[str]:
        """The conclusions, sentence by sentence."""
        sentences = [self._cost(), *self._certification()]
        if self.certified and _is_larger((last := self.certified[-1]).chosen_objective, last.objective):
            sentences.append(
                f"Certification needs a more conservative model: at {self.format_bound(last.bound)} its F is "
                f"{_format(last.chosen_objective)} on the training rows, compared with {_format(last.objective)} for "
                "the bound alone. More certification rows reduce the difference."
            )
        if math.isfinite(self.smallest.constraint):
            constant = "; a constant prediction also reaches it" if self.smallest.is_trivial else ""
            reached = f"{self.format_bound(self.smallest.constraint)}, with F = {self.smallest.objective:.3g}"
            sentences.append(f"The smallest constraint reached on the training rows is {reached}{constant}.")
        return [sentence for sentence in sentences if sentence]

    def _cost(self) -> str:
        """Describe the cost of the requested or smallest certified bound, compared with one about twice as large."""
        reached = [point for point in self.points if point.reached]
        if len(reached) < 2:
            return ""
        wanted = self.smallest_certified if self.requested is None else self.requested
        tight = next((point for point in reached[1:] if point.bound == wanted), reached[1])
        looser = [point for point in reached if point.bound > tight.bound]
        loose = min(looser, key=lambda point: abs(math.log(point.bound / (2 * tight.bound))) if tight.bound else 0.0)
        is_half = tight.bound > 0 and abs(loose.bound / tight.bound - 2) < RATIO_TOLERANCE
        amount = "almost nothing"
        if _is_larger(tight.objective, loose.objective):
            amount = f"{tight.objective - loose.objective:.3g}"
        cost = (
            f"{'Halving' if is_half else 'Lowering'} the bound from {self.format_bound(loose.bound)} to "
            f"{self.format_bound(tight.bound)} costs the worst client {amount}: on the training rows its objective F "
            f"rises from {_format(loose.objective)} to {_format(tight.objective)}."
        )
        names = [name for name in loose.measures if name in tight.measures and loose.outcome is tight.outcome]
        changes = "; ".join(f"{name} {loose.measures[name]:.3g} and {tight.measures[name]:.3g}" for name in names)
        return f"{cost} On validation rows: {changes}." if changes else cost

    def _certification(self) -> list[str]:
        smallest, count = self.smallest_certified, len(self.certified)
        confidence = f"{'approximately, ' * self.approximate}with {100 * self.confidence:.4g}% confidence"
        sentences = [f"No bound is certified {confidence}."]
        if smallest is not None:
            looser = "one" if count == 2 else str(count - 1)
            jointly = f", jointly with the {looser} looser before it" if count > 1 else ""
            where = f"at all {self.clients} clients" if self.clients > 1 else "at the client"
            bound = self.format_bound(smallest)
            sentences = [f"The smallest certified bound is {bound}{jointly}, {confidence}, {where}."]
        if self.tested:
            (last, passed), tests = self.tested[-1], len(self.tested)
            models = f"{tests} of {self.planned_tests} models" if self.planned_tests > 1 else "One model"
            ended = f"the last, for {self.format_bound(last)}, did not pass, which ended the tests"
            outcome = "all passed" if passed else ended
            sentences.append(f"{models} {'was' if tests == 1 else 'were'} tested, the most promising first: {outcome}.")
        for point in self.points:
            if point.outcome is BoundOutcome.FAILED:
                failing = f" Failing clients: {join_first(point.failing_clients)}." if point.failing_clients else ""
                sentences.append(f"{self.format_bound(point.bound)} is not certified.{failing}")
        reasons = {
            BoundOutcome.LATER: "not tested",
            BoundOutcome.TOO_FEW: "too small to be certified with these rows",
            BoundOutcome.NOT_REACHED: "not reached on the training rows",
        }
        for kind, reason in reasons.items():
            bounds = [self.format_bound(point.bound) for point in self.points if point.outcome is kind]
            if bounds:
                sentences.append(f"{', '.join(bounds)} {'is' if len(bounds) == 1 else 'are'} {reason}.")
        return sentences

    @property
    def columns(self) -> dict[str, list[str]]:
        """The columns of the table by heading."""
        points = self.points
        approximate = "≈ " if self.approximate else ""
        return {
            "bound": [self.format_bound(point.bound) for point in points],
            "model": [f"{approximate if p.outcome is BoundOutcome.CERTIFIED else ''}{p.outcome}" for p in points],
            "least F": [_format(point.objective if point.reached else math.nan) for point in points],
            "its G": [self.format_bound(p.constraint) if math.isfinite(p.constraint) else "–" for p in points],
            "model's F": [_format(point.chosen_objective) for point in points],
            "F, validation": [_format(point.other_objective) for point in points],
            **{name: [_format(p.measures.get(name, math.nan)) for p in points] for name in self._measure_names()},
            "constant's F": [_format(point.constant) for point in points],
        }

    @property
    def notes(self) -> str:
        """Explanation of the columns."""
        measured = " and the further metrics" if self._measure_names() else ""
        return (
            "F: the worst client's objective. Least F: the smallest within the bound on the training rows. The model "
            f"is the one selected for new data. Its validation F{measured} are computed on the rows that selected it. "
            "Constant: the best constant prediction within the bound."
        )

    def table(self) -> Table:
        """Return a table for the terminal, one row per bound."""
        table = Table(title=f"Cost of the bound; certificates hold jointly with confidence {self.confidence:g}")
        shown = {name: cells for name, cells in self.columns.items() if name not in ("its G", "model's F")}
        for name in shown:
            table.add_column(name, justify="left" if name == "model" else "right", no_wrap=name == "model")
        for cells in zip(*shown.values(), strict=True):
            table.add_row(*cells)
        table.caption = self.notes
        return table

    def _measure_names(self) -> list[str]:
        return list(dict.fromkeys(name for point in self.points for name in point.measures))

    def to_dict(self) -> dict[str, Any]:
        """Return the frontier for JSON, without models and with None for numbers that are not finite."""
        return {
            **{name: getattr(self, name) for name in _SAVED},
            "tested": [list(test) for test in self.tested],
            "smallest_certified": self.smallest_certified,
            "smallest": self.smallest.to_dict(),
            "points": [point.to_dict() for point in self.points],
            "summary": self.summary,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Frontier:
        """Restore a frontier from ``to_dict``, with NaN for None."""
        return cls(
            points=tuple(map(FrontierPoint.from_dict, values["points"])),
            smallest=SmallestConstraint.from_dict(values["smallest"]),
            **{name: values[name] for name in _SAVED},
            tested=tuple((float(bound), bool(passed)) for bound, passed in values["tested"]),
        )

    def to_csv(self) -> str:
        """Return CSV text with one line per bound. Numbers that are not finite are empty."""
        names = self._measure_names()
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(escape_row(["bound", *NUMBERS, *names, "outcome", "model"]))
        for point in self.points:
            values = point.to_dict()
            cells = [*(values[n] for n in ("bound", *NUMBERS)), *(values["measures"].get(n) for n in names)]
            writer.writerow(escape_row([*cells, str(point.outcome), point.model]))
        return stream.getvalue()

    def figure(self) -> Figure:
        """Plot F and the metrics against the bound in panels that fit a phone. Filled markers are certified."""
        from matplotlib.lines import Line2D

        from softswitch.support.plotting import BLUE, GREEN, GREY, PURPLE, VERMILLION, add_legend, make_panels

        points, measures = self.points, self._measure_names()
        figure, axes = make_panels(1 + bool(measures), 1, "Cost of the bound", width=WIDTH, height=HEIGHT)
        upper, lower = axes[0, 0], axes[-1, 0]
        bounds, constants = [point.bound for point in points], [point.constant for point in points]
        least = [point.objective if point.reached else math.nan for point in points]
        upper.plot(bounds, least, color=BLUE, linewidth=1.8, label="least F within the bound, training rows")
        validation = [point.other_objective for point in points]
        _plot_models(upper, points, validation, VERMILLION, "model's F, validation rows")
        if any(map(math.isfinite, constants)):
            upper.plot(bounds, constants, color=GREY, linestyle=":", label="best constant's F")
        upper.set(ylabel="worst client's objective F", ylim=(0, None))
        for name, colour in zip(measures, (GREEN, PURPLE, BLUE, VERMILLION, GREY) * len(measures), strict=False):
            _plot_models(lower, points, [point.measures.get(name, math.nan) for point in points], colour, name)
        if measures:
            lower.set(ylabel="model, validation rows")
        tightest, loosest = min(bounds), max(bounds)
        labels: Any = [f"{100 * bound:.3g}%" if self.shares else f"{bound:.3g}" for bound in sorted(bounds)]
        for panel in axes[:, 0]:
            if tightest > 0:
                panel.set_xscale("log")
            panel.minorticks_off()
            panel.set_xticks(sorted(bounds), labels, rotation=45 if len(bounds) > 4 else 0)
            if (smallest := self.smallest.constraint) > tightest:
                panel.axvspan(tightest, min(smallest, loosest), color=GREY, alpha=0.12, label="not reached")
        lower.set_xlabel("bound on the constraint")
        add_legend(figure, list(axes[:, 0]), columns=1)
        kinds = [Line2D([], [], color=GREY, marker="o", linestyle="", markerfacecolor=face) for face in (GREY, "white")]
        lower.legend(kinds, ["certified", "not certified"], frameon=False, fontsize="small", loc="best")
        return figure

    def __str__(self) -> str:
        return "\n".join([render_text(self.table()), *self.summary])


_SAVED = ("confidence", "clients", "shares", "approximate", "certifiability", "requested", "planned_tests")


def _is_larger(objective: float, reference: float) -> bool:
    return objective - reference > max(SMALL_SHARE * abs(reference), SMALL)


def _format(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    if 0 < value < SMALL:
        return f"<{SMALL:g}"
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.4g}"


def _plot_models(axes: Axes, points: Sequence[FrontierPoint], values: Sequence[float], colour: str, label: str) -> None:
    """Plot a marker per bound and connect models that were selected for the same purpose."""
    for i, (point, value) in enumerate(zip(points, values, strict=True)):
        face = colour if point.outcome is BoundOutcome.CERTIFIED else "white"
        axes.plot([point.bound], [value], "o", markersize=6, color=colour, markerfacecolor=face, zorder=3)
        if i and points[i - 1].is_for_certification is point.is_for_certification:
            axes.plot([points[i - 1].bound, point.bound], values[i - 1 : i + 1], "--", color=colour, linewidth=1.2)
    axes.plot([], [], "o--", color=colour, label=label)
