"""Fair classification compared: F and G, and beside them what a user of the classifier sees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from softswitch.results.result import Result
from softswitch.support.plotting import METHODS
from softswitch.tables.metrics import group_metrics
from softswitch_experiments.paper.adult_study import STUDY, TOLERANCE
from softswitch_experiments.paper.comparison import Found, compare
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.study import StudyTask, Way, lasts, mean, reached
from softswitch_experiments.tasks.fair_classification import accuracy_and_gap


def run(scale: Scale) -> Outcome:
    """The comparison, with test accuracy against the gap of decisions in a fifth panel."""
    own = STUDY.tasks(scale.seeds)

    def beside(panel: Axes, way: Way, found: Found) -> tuple[list[Claim], dict[str, list[Row]]]:
        decisions = {label: _decisions(results, own) for label, results in found.items()}
        groups: list[Row] = []
        for label, rows in decisions.items():
            method, _, is_tuned = label.partition(", ")
            x, y = ([row[name] for row in rows] for name in ("decision_gap", "accuracy"))
            filled = METHODS[method] if not is_tuned else "none"
            panel.plot(x, y, "o", color=METHODS[method], markerfacecolor=filled, markersize=5)
            for result, task in zip(found[label], own, strict=True):
                groups += group_metrics(result.last, task.test, way=way.name, method=label, seed=result.seed)
        panel.set(title=f"decisions  ({way.name})", xlabel="gap on test rows (○ tuned)", ylabel="accuracy")
        table = [{"way": way.name, "method": label, **row} for label, rows in decisions.items() for row in rows]
        return _claims(found, way, own), {"decisions": table, "groups": groups}

    return compare(STUDY, scale, beside)


def _decisions(results: Sequence[Result], own: Sequence[StudyTask]) -> list[Row]:
    return [
        {"seed": result.seed, **accuracy_and_gap(result.last, task.test)}
        for result, task in zip(results, own, strict=True)
    ]


def _claims(found: Found, way: Way, own: Sequence[StudyTask]) -> list[Claim]:
    """At the paper's settings, last iterates on training data, worst client."""
    ends = {label: lasts(results, own) for label, results in found.items()}
    softmax, penalty, dual = (ends[label] for label in STUDY.rules)
    gain = np.mean([p.worst_objective - s.worst_objective for p, s in zip(penalty, softmax, strict=True)])
    return [
        Claim(
            f"{way.name}: at the paper's settings Softmax SGM ends with G <= {1.1 * TOLERANCE:g} and F at least 0.02 "
            "below the penalty method's, whose G is smaller",
            mean(softmax, "worst_constraint") <= 1.1 * TOLERANCE
            and bool(gain >= 0.02)
            and mean(penalty, "worst_constraint") < mean(softmax, "worst_constraint"),
            f"Softmax SGM {reached(softmax)}; penalty {reached(penalty)}",
        ),
        Claim(
            f"{way.name}: primal-dual does not recover from μ₀ = 10: F at least 0.1 above Softmax SGM's",
            mean(dual, "worst_objective") >= mean(softmax, "worst_objective") + 0.1,
            reached(dual),
        ),
    ]


EXPERIMENT = Experiment(
    "fair-comparison",
    "Adult with parity: Softmax SGM, penalty, primal-dual; accuracy too",
    run,
    extra="fairness",
    group="fair tuning",
)
