"""The trade-off curve: F and other metrics against the bound, and the bounds that are certified."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from rich.table import Table

from softswitch.results.certificate import Certificate, Outcome
from softswitch.results.json_numbers import JsonRecord, nan_if_none
from softswitch.results.result import Result
from softswitch.support.text import join_first, render_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 5.6, 2.9  # of a panel, in inches
SMALL = 1e-4  # smaller positive numbers are written "<0.0001"


@dataclass(frozen=True, eq=False)
class FrontierPoint(JsonRecord):
    """One bound of a trade-off curve: the smallest F within it, and the model selected to be certified for it.

    Attributes:
        bound: Upper bound on the constraint.
        outcome: Outcome of certification of the selected model.
        objective: The smallest F, the worst client's objective, within the bound on the training rows.
        constraint: G, the largest constraint of any client, of the model with that F.
        other_objective: F of the selected model on the validation rows.
        constant: F of the best constant prediction within the bound on the training rows. Default: NaN, none.
        measures: Further metrics of the selected model on the validation rows, by name.
        model: Description of the selected model.
        failing_clients: Labels of the clients with enough rows that failed the test; empty if the model is certified.
        result: The run with the selected model as its answer; None if the point was read from a file.
        certificate: Certificate of the selected model; None if the point was read from a file.
        certified: The selected model as ``solve_certified`` or another trainer returned it; None if read from a file.
    """

    bound: float
    outcome: Outcome
    objective: float
    constraint: float
    other_objective: float
    constant: float = math.nan
    measures: dict[str, float] = field(default_factory=dict)
    model: str = ""
    failing_clients: tuple[str, ...] = ()
    result: Result | None = field(default=None, compare=False)
    certificate: Certificate | None = field(default=None, compare=False)
    certified: Any = field(default=None, compare=False)

    @property
    def reached(self) -> bool:
        """Whether a model meets the bound on the training rows."""
        return self.constraint <= self.bound

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FrontierPoint:
        """Restore a point, without its result and certificate, from ``to_dict``, with NaN for None."""
        measures = {name: nan_if_none(value) for name, value in values["measures"].items()}
        outcome, failing = Outcome(values["outcome"]), tuple(values["failing_clients"])
        return super().from_dict({**values, "measures": measures, "outcome": outcome, "failing_clients": failing})


@dataclass(frozen=True, eq=False)
class Frontier:
    """The trade-off curve: models trained for several bounds, from the loosest to the tightest.

    The certificates hold jointly: the probability that any certified model exceeds its bound at any client is at most
    1 − confidence.

    Attributes:
        points: One point per bound, the loosest first.
        confidence: Joint confidence of the certificates, in (0, 1).
        clients: Number of clients.
        shares: Whether the constraint is a rate or a difference of rates, shown in percent. Default: False.
        approximate: Whether the certificates are approximate, because the range of the constraint is unknown.
        certifiability: Text of the ``Certifiability`` of the calibration rows at the tightest bound.
    """

    points: tuple[FrontierPoint, ...]
    confidence: float
    clients: int
    shares: bool = False
    approximate: bool = False
    certifiability: str = ""

    @property
    def certified(self) -> tuple[FrontierPoint, ...]:
        """The points whose models are certified."""
        return tuple(point for point in self.points if point.outcome.is_certified)

    @property
    def smallest_certified(self) -> float | None:
        """The smallest certified bound; None if there is none."""
        return min((point.bound for point in self.certified), default=None)

    def format_bound(self, bound: float) -> str:
        """Return a bound as text with 4 significant digits, in percent if ``shares``."""
        return f"{100 * bound:.4g}%" if self.shares else f"{bound:.4g}"

    @property
    def summary(self) -> list[str]:
        """Sentences on the certified bounds, and on the clients that failed."""
        smallest, count = self.smallest_certified, len(self.certified)
        confidence = f"{'approximately, ' * self.approximate}with {100 * self.confidence:.4g}% confidence"
        sentences = [f"No bound is certified {confidence}."]
        if smallest is not None:
            looser = "one" if count == 2 else str(count - 1)
            bound = f"{self.format_bound(smallest)}{f', jointly with the {looser} looser before it' * (count > 1)}"
            where = f"at all {self.clients} clients" if self.clients > 1 else "at the client"
            if self.certified[-1].outcome is Outcome.PARTLY:
                where = "at every client with enough rows"
            sentences = [f"The smallest certified bound is {bound}, {confidence}, {where}."]
        for point in self.points:
            if point.failing_clients:
                failing = join_first(point.failing_clients)
                sentences.append(f"{self.format_bound(point.bound)} is not certified. Failing clients: {failing}.")
        return sentences

    @property
    def columns(self) -> dict[str, list[str]]:
        """The columns of the table by heading, one cell of text per point."""
        return {
            "bound": [self.format_bound(point.bound) for point in self.points],
            "model": [f"{'≈ ' * (self.approximate and p in self.certified)}{p.outcome}" for p in self.points],
            "least F": [_format(point.objective if point.reached else math.nan) for point in self.points],
            "F, validation": [_format(point.other_objective) for point in self.points],
            **{name: [_format(p.measures.get(name, math.nan)) for p in self.points] for name in self._measure_names()},
            "constant's F": [_format(point.constant) for point in self.points],
        }

    @property
    def notes(self) -> str:
        """Explanation of the table's columns."""
        measured = " and the further metrics" if self._measure_names() else ""
        return (
            "F: the worst client's objective. Least F: the smallest within the bound on the training rows. The model "
            f"is the one selected for new data. Its validation F{measured} are computed on the rows that selected it. "
            "Constant: the best constant prediction within the bound."
        )

    def table(self) -> Table:
        """Return a rich table, one row per bound."""
        table = Table(title=f"Cost of the bound; certificates hold jointly with confidence {self.confidence:g}")
        for name in self.columns:
            table.add_column(name, justify="left" if name == "model" else "right", no_wrap=name == "model")
        for cells in zip(*self.columns.values(), strict=True):
            table.add_row(*cells)
        table.caption = self.notes
        return table

    def _measure_names(self) -> list[str]:
        return list(dict.fromkeys(name for point in self.points for name in point.measures))

    def to_dict(self) -> dict[str, Any]:
        """Return the frontier for JSON, without results and certificates, and with None for non-finite numbers."""
        return {
            **vars(self),
            "smallest_certified": self.smallest_certified,
            "points": [point.to_dict() for point in self.points],
            "summary": self.summary,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Frontier:
        """Restore a frontier from ``to_dict``; its points have no result and no certificate."""
        known = {entry.name: values[entry.name] for entry in fields(cls)}
        points = tuple(map(FrontierPoint.from_dict, values["points"]))
        return cls(**known | {"points": points})

    def figure(self) -> Figure:
        """Plot F, and in a second panel the metrics, against the bound. Filled markers are certified models."""
        from softswitch.support.plotting import BLUE, GREEN, GREY, PURPLE, VERMILLION, add_legend, make_panels

        bounds, measures = [point.bound for point in self.points], self._measure_names()
        figure, axes = make_panels(1 + bool(measures), 1, "Cost of the bound", width=WIDTH, height=HEIGHT)
        upper, lower = axes[0, 0], axes[-1, 0]
        least = [point.objective if point.reached else math.nan for point in self.points]
        upper.plot(bounds, least, color=BLUE, linewidth=1.8, label="least F within the bound, training rows")
        self._plot_models(upper, [p.other_objective for p in self.points], VERMILLION, "model's F, validation rows")
        if any(map(math.isfinite, constants := [point.constant for point in self.points])):
            upper.plot(bounds, constants, color=GREY, linestyle=":", label="best constant's F")
        upper.set(ylabel="worst client's objective F", ylim=(0, None))
        for name, colour in zip(measures, itertools.cycle((GREEN, PURPLE, BLUE, VERMILLION, GREY)), strict=False):
            self._plot_models(lower, [p.measures.get(name, math.nan) for p in self.points], colour, name)
            lower.set(ylabel="model, validation rows")
        labels: Any = list(map(self.format_bound, bounds))
        for panel in axes[:, 0]:
            panel.set_xscale("log" if min(bounds) > 0 else "linear")
            panel.minorticks_off()
            panel.set_xticks(bounds, labels, rotation=45 if len(bounds) > 4 else 0)
        lower.set_xlabel("bound on the constraint; filled markers are certified")
        add_legend(figure, list(axes[:, 0]), columns=1)
        return figure

    def _plot_models(self, axes: Axes, values: Sequence[float], colour: str, label: str) -> None:
        bounds = [point.bound for point in self.points]
        axes.plot(bounds, values, "o--", color=colour, linewidth=1.2, markerfacecolor="white", label=label)
        filled = [v if p in self.certified else math.nan for p, v in zip(self.points, values, strict=True)]
        axes.plot(bounds, filled, "o", color=colour)

    def __str__(self) -> str:
        return "\n".join([render_text(self.table()), *self.summary])


def _format(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    if 0 < value < SMALL:
        return f"<{SMALL:g}"
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.4g}"
