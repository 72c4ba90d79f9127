"""What the constraint costs: F and more against the bound, and how far down it is certified."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from softswitch.results.frontier_point import NUMBERS, BoundOutcome, FrontierPoint, SmallestConstraint, finite, number
from softswitch.support.text import as_text, defused_row, few_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WIDTH, HEIGHT = 5.6, 2.9


def drawn(points: Sequence[FrontierPoint], smallest: SmallestConstraint, *, shares: bool) -> Figure:
    """One panel above the other: narrow enough for a phone. Filled marks are certified."""
    from matplotlib.lines import Line2D

    from softswitch.support.plotting import BLUE, GREEN, GREY, PURPLE, VERMILLION, legend, panels

    measures = list(dict.fromkeys(name for point in points for name in point.measures))
    figure, axes = panels(1 + bool(measures), 1, "What the bound costs", width=WIDTH, height=HEIGHT)
    upper, lower = axes[0, 0], axes[-1, 0]
    bounds = [point.bound for point in points]
    least = [point.objective if point.reached else math.nan for point in points]
    upper.plot(bounds, least, color=BLUE, linewidth=1.8, label="least F that keeps it, rows learnt from")
    _marks(upper, points, [point.other_objective for point in points], VERMILLION, "model's F, rows not trained on")
    constants = [point.constant for point in points]
    if any(map(math.isfinite, constants)):
        upper.plot(bounds, constants, color=GREY, linestyle=":", label="best constant's F")
    upper.set(ylabel="worst client's objective F", ylim=(0, None))
    for name, colour in zip(measures, (GREEN, PURPLE, BLUE, VERMILLION, GREY) * len(measures), strict=False):
        _marks(lower, points, [point.measures.get(name, math.nan) for point in points], colour, name)
    if measures:
        lower.set(ylabel="model, rows not trained on")
    for panel in axes[:, 0]:
        _bounds_below(panel, points, smallest, shares=shares)
    lower.set_xlabel("bound: what the constraint may be at most")
    legend(figure, list(axes[:, 0]), columns=1)
    kinds = [Line2D([], [], color=GREY, marker="o", linestyle="", markerfacecolor=face) for face in (GREY, "white")]
    lower.legend(kinds, ["certified", "not"], frameon=False, fontsize="small", loc="best")
    return figure


def _marks(axes: Axes, points: Sequence[FrontierPoint], values: Sequence[float], colour: str, label: str) -> None:
    """A mark at each bound, filled where the model is certified; joined where models were chosen for the same end."""
    for i, (point, value) in enumerate(zip(points, values, strict=True)):
        face = colour if point.outcome is BoundOutcome.CERTIFIED else "white"
        axes.plot([point.bound], [value], "o", markersize=6, color=colour, markerfacecolor=face, zorder=3)
        if i and points[i - 1].for_a_certificate is point.for_a_certificate:
            axes.plot([points[i - 1].bound, point.bound], values[i - 1 : i + 1], "--", color=colour, linewidth=1.2)
    axes.plot([], [], "o--", color=colour, label=label)


def _bounds_below(axes: Axes, points: Sequence[FrontierPoint], smallest: SmallestConstraint, *, shares: bool) -> None:
    """The bounds as ticks, as a reader has them, and where the smallest constraint is that was reached."""
    from matplotlib.ticker import FixedLocator, NullLocator

    from softswitch.support.plotting import GREY

    bounds = sorted(point.bound for point in points)
    if bounds[0] > 0:
        axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(FixedLocator(bounds))
    named: Any = [f"{100 * bound:.3g}%" if shares else f"{bound:.3g}" for bound in bounds]
    axes.set_xticks(bounds, named, rotation=45 if len(bounds) > 4 else 0)
    if smallest.constraint > bounds[0]:
        axes.axvspan(bounds[0], min(smallest.constraint, bounds[-1]), color=GREY, alpha=0.12, label="not reached")


LIKE = 1e-6
HARDLY, TINY = 1e-3, 1e-4


@dataclass(frozen=True, eq=False)
class Frontier:
    """Models trained for several bounds, from the loosest to the tightest.

    All points that are "certified" are so together: the chance that the constraint of any of their models is above its
    bound at any client is at most 1 − confidence.

    Attributes:
        points: one a bound, the loosest first.
        smallest: the smallest constraint that was reached on the rows learnt from.
        confidence: of the certificates.
        clients: how many there are.
        shares: whether the constraint is a share or a gap between shares, told in per cent.
        approximate: whether the certificates are approximations, since no range of the constraint is known.
        certifiability: what the rows to certify could show at best at the tightest bound, in words.
        asked: the bound that the question began with, where there is one.
        claims: how many models were to be tested, several a bound.
        tested: those that were, in their order: the bound, and whether it passed.
    """

    points: tuple[FrontierPoint, ...]
    smallest: SmallestConstraint
    confidence: float
    clients: int
    shares: bool = False
    approximate: bool = False
    certifiability: str = ""
    asked: float | None = None
    claims: int = 0
    tested: tuple[tuple[float, bool], ...] = ()

    @property
    def certified(self) -> tuple[FrontierPoint, ...]:
        """Those whose models keep their bounds on rows that nobody has seen."""
        return tuple(point for point in self.points if point.outcome is BoundOutcome.CERTIFIED)

    @property
    def smallest_certified(self) -> float | None:
        """The smallest bound that is certified; None where none is."""
        return min((point.bound for point in self.certified), default=None)

    def named(self, bound: float) -> str:
        """A bound as a reader has it.

        Args:
            bound: in the constraint's unit; a share of 0.05 is named 5%.
        """
        return f"{100 * bound:.4g}%" if self.shares else f"{bound:.4g}"

    @property
    def words(self) -> list[str]:
        """What it comes to, sentence by sentence."""
        return [said for said in (self._cost(), *self._certainty(), self._care(), self._least()) if said]

    def _cost(self) -> str:
        """What a tighter bound costs: the one asked for, or the smallest certified, beside one about twice as large."""
        reached = [point for point in self.points if point.reached]
        if len(reached) < 2:
            return ""
        wanted = self.smallest_certified if self.asked is None else self.asked
        tight = next((point for point in reached[1:] if point.bound == wanted), reached[1])
        looser = [point for point in reached if point.bound > tight.bound]
        loose = min(looser, key=lambda point: abs(math.log(point.bound / (2 * tight.bound))) if tight.bound else 0.0)
        half = tight.bound > 0 and abs(loose.bound / tight.bound - 2) < LIKE
        said = f"{'Halving' if half else 'Lowering'} the bound from {self.named(loose.bound)} to "
        more = tight.objective - loose.objective
        costs = f"{more:.3g}" if more > max(HARDLY * abs(loose.objective), TINY) else "next to nothing"
        said += f"{self.named(tight.bound)} costs the worst client {costs}: on the rows learnt from its objective F is "
        said += f"{_told(loose.objective)} with the one and {_told(tight.objective)} with the other."
        if loose.outcome is not tight.outcome:
            return said
        moved = [
            f"{name} {loose.measures[name]:.3g} and {tight.measures[name]:.3g}"
            for name in loose.measures
            if name in tight.measures
        ]
        return f"{said} On rows not trained on: {'; '.join(moved)}." if moved else said

    def _certainty(self) -> list[str]:
        least, sure = self.smallest_certified, f"with {100 * self.confidence:.4g}% confidence"
        sure = f"approximately, {sure}" if self.approximate else sure
        where = f"at all {self.clients} clients" if self.clients > 1 else "at the client"
        many = len(self.certified)
        if least is None:
            said = [f"No bound is certified {sure}."]
        else:
            before = "one" if many == 2 else str(many - 1)
            together = f", together with the {before} looser before it" if many > 1 else ""
            said = [f"The smallest bound certified is {self.named(least)}{together}, {sure}, {where}."]
        if self.tested:
            (last, passed), many = self.tested[-1], len(self.tested)
            named = f"{many} of {self.claims} models" if self.claims > 1 else "One model"
            ended = "all passed" if passed else f"the last, for {self.named(last)}, did not pass, which ends the tests"
            said.append(f"{named} {'was' if many == 1 else 'were'} tested, from the likeliest on: {ended}.")
        for point in self.points:
            if point.outcome is BoundOutcome.FAILED:
                named = f" In the way: {few_of(point.in_the_way)}." if point.in_the_way else ""
                said.append(f"{self.named(point.bound)} is not certified.{named}")
        why = {
            BoundOutcome.LATER: "not tested",
            BoundOutcome.TOO_FEW: "beyond what these rows could certify, whatever the model is",
            BoundOutcome.NOT_REACHED: "not reached on the rows learnt from",
        }
        for outcome, words in why.items():
            those = [self.named(point.bound) for point in self.points if point.outcome is outcome]
            if those:
                said.append(f"{', '.join(those)} {'is' if len(those) == 1 else 'are'} {words}.")
        return said

    def _care(self) -> str:
        """What it costs to be certified, beyond what the bound does."""
        if not self.certified:
            return ""
        point = self.certified[-1]
        more = point.chosen_objective - point.objective
        if more <= max(HARDLY * abs(point.objective), TINY):
            return ""
        return (
            f"To be certified a model has to be more careful than its bound says: at {self.named(point.bound)} its F "
            f"is {_told(point.chosen_objective)} on the rows learnt from, where {_told(point.objective)} would keep "
            "the bound. More rows to certify with make that less."
        )

    def _least(self) -> str:
        least = self.smallest
        if not math.isfinite(least.constraint):
            return ""
        at = f"with F = {least.objective:.3g}"
        also = "; a constant prediction has it too" if least.by_a_constant else ""
        return f"The smallest constraint reached on the rows learnt from is {self.named(least.constraint)}, {at}{also}."

    @property
    def columns(self) -> dict[str, list[str]]:
        """The table's columns by what stands above them."""
        points = self.points
        return {
            "bound": [self.named(point.bound) for point in points],
            "the model is": [self._outcome(point) for point in points],
            "least F": [_told(point.objective if point.reached else math.nan) for point in points],
            "its G": [self.named(point.constraint) if math.isfinite(point.constraint) else "–" for point in points],
            "model's F": [_told(point.chosen_objective) for point in points],
            "F, other rows": [_told(point.other_objective) for point in points],
            **{name: [_told(p.measures.get(name, math.nan)) for p in points] for name in self._measure_names()},
            "constant's F": [_told(point.constant) for point in points],
        }

    def _outcome(self, point: FrontierPoint) -> str:
        about = "≈ " if self.approximate and point.outcome is BoundOutcome.CERTIFIED else ""
        return f"{about}{point.outcome}"

    @property
    def notes(self) -> str:
        """How to read the columns."""
        measured = "; likewise what else is measured" if self._measure_names() else ""
        return (
            "F: the worst client's objective. Least F: the smallest found on the rows learnt from that keeps the "
            "bound. The model is the one chosen for unseen rows; F on other rows is by those that it was chosen by, "
            f"not trained on{measured}. Constant: the best prediction that is the same for every row and keeps the "
            "bound."
        )

    def table(self) -> Table:
        """One line a bound, for the terminal."""
        table = Table(title=f"What the bound costs; certified all together with confidence {self.confidence:g}")
        shown = {name: cells for name, cells in self.columns.items() if name not in ("its G", "model's F")}
        for name in shown:
            last = name == "the model is"
            table.add_column(name, justify="left" if last else "right", no_wrap=last)
        for cells in zip(*shown.values(), strict=True):
            table.add_row(*cells)
        table.caption = self.notes
        return table

    def _measure_names(self) -> list[str]:
        return list(dict.fromkeys(name for point in self.points for name in point.measures))

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers and words, for JSON: what is not finite is None. Models are not in it."""
        return {
            "confidence": self.confidence,
            "clients": self.clients,
            "shares": self.shares,
            "approximate": self.approximate,
            "certifiability": self.certifiability,
            "asked": self.asked,
            "claims": self.claims,
            "tested": [list(one) for one in self.tested],
            "smallest_certified": self.smallest_certified,
            "smallest": {name: finite(value) for name, value in asdict(self.smallest).items()},
            "points": [point.to_dict() for point in self.points],
            "words": self.words,
        }

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Frontier:
        """From ``to_dict``; what was not finite is NaN.

        Args:
            told: what ``to_dict`` gave.
        """
        return cls(
            points=tuple(FrontierPoint.from_dict(point) for point in told["points"]),
            smallest=SmallestConstraint(**{name: number(value) for name, value in told["smallest"].items()}),
            **{
                name: told[name]
                for name in ("confidence", "clients", "shares", "approximate", "certifiability", "asked", "claims")
            },
            tested=tuple((float(bound), bool(passed)) for bound, passed in told["tested"]),
        )

    def to_csv(self) -> str:
        """One line a bound, in plain numbers; what is not finite is empty."""
        names = self._measure_names()
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        plain = ("bound", *NUMBERS)
        writer.writerow(defused_row([*plain, *names, "outcome", "model"]))
        for point in self.points:
            told = point.to_dict()
            cells = [*(told[name] for name in plain), *(finite(point.measures.get(name, math.nan)) for name in names)]
            plain_cells = ("" if cell is None else cell for cell in cells)
            writer.writerow(defused_row([*plain_cells, str(point.outcome), point.model]))
        return stream.getvalue()

    def figure(self) -> Figure:
        """F and the measures against the bound; ``figure.savefig("frontier.png")``."""
        return drawn(self.points, self.smallest, shares=self.shares)

    def __str__(self) -> str:
        return "\n".join([as_text(self.table()), *self.words])


def _told(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    if 0 < value < TINY:
        return f"<{TINY:g}"
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.4g}"
