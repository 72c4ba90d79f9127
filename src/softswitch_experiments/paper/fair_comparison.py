"""Fair classification: F and G of the methods, and accuracy and gap of their decisions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from softswitch.results.result import Result
from softswitch.tables.metrics import group_metrics
from softswitch_experiments.paper.adult_study import STUDY, TOLERANCE
from softswitch_experiments.paper.comparison import compare
from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.study import Runs, Scheme, StudyTask, format_point, last_iterates, mean
from softswitch_experiments.plotting import METHODS
from softswitch_experiments.tasks.fair_classification import accuracy_and_gap


def run(scale: Scale) -> Outcome:
    """Compare the methods, with test accuracy against the gap of decisions in a fifth panel."""
    tasks = STUDY.tasks(scale.seeds)

    def draw_decisions(panel: Axes, scheme: Scheme, runs: Runs) -> tuple[list[Claim], dict[str, list[Row]]]:
        decisions = {label: _decision_rows(results, tasks) for label, results in runs.items()}
        groups: list[Row] = []
        for label, rows in decisions.items():
            method, _, is_tuned = label.partition(", ")
            x, y = ([row[name] for row in rows] for name in ("decision_gap", "accuracy"))
            filled = METHODS[method] if not is_tuned else "none"
            panel.plot(x, y, "o", color=METHODS[method], markerfacecolor=filled, markersize=5)
            for result, task in zip(runs[label], tasks, strict=True):
                groups += group_metrics(result.last, task.test, scheme=scheme.name, method=label, seed=result.seed)
        panel.set(title=f"decisions  ({scheme.name})", xlabel="gap on test rows (○ tuned)", ylabel="accuracy")
        table = [{"way": scheme.name, "method": label, **row} for label, rows in decisions.items() for row in rows]
        return _claims(runs, scheme, tasks), {"decisions": table, "groups": groups}

    return compare(STUDY, scale, draw_decisions)


def _decision_rows(results: Sequence[Result], tasks: Sequence[StudyTask]) -> list[Row]:
    return [
        {"seed": result.seed, **accuracy_and_gap(result.last, task.test)}
        for result, task in zip(results, tasks, strict=True)
    ]


def _claims(runs: Runs, scheme: Scheme, tasks: Sequence[StudyTask]) -> list[Claim]:
    """Compare last iterates at the paper's settings."""
    last = {label: last_iterates(results, tasks) for label, results in runs.items()}
    softmax, penalty, dual = (last[label] for label in STUDY.methods)
    gain = np.mean([p.worst_objective - s.worst_objective for p, s in zip(penalty, softmax, strict=True)])
    return [
        Claim(
            f"{scheme.name}: at the paper's settings Softmax SGM ends with G <= {1.1 * TOLERANCE:g} and F at least "
            "0.02 below the penalty method's, whose G is smaller",
            mean(softmax, "worst_constraint") <= 1.1 * TOLERANCE
            and bool(gain >= 0.02)
            and mean(penalty, "worst_constraint") < mean(softmax, "worst_constraint"),
            f"Softmax SGM {format_point(softmax)}; penalty {format_point(penalty)}",
        ),
        Claim(
            f"{scheme.name}: primal-dual does not recover from μ₀ = 10: F at least 0.1 above Softmax SGM's",
            mean(dual, "worst_objective") >= mean(softmax, "worst_objective") + 0.1,
            format_point(dual),
        ),
    ]


EXPERIMENT = Experiment(
    "fair-comparison",
    "Adult with parity: Softmax SGM, penalty, primal-dual; accuracy too",
    run,
    group="fair tuning",
)
