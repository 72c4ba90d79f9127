"""Neyman–Pearson with heterogeneous clients: a Dirichlet split, with clients that lack a class."""

from __future__ import annotations

from typing import Any

import numpy as np

from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome, Row, Scale
from softswitch_experiments.paper.np_study import AVERAGE, CLIENTS, STUDY, TOLERANCE
from softswitch_experiments.paper.study import Point, Scheme, answer_rows, answers, mean, values_of
from softswitch_experiments.plotting import METHODS, add_legend, make_narrow_panels, plot_tolerance

CONCENTRATION = 0.5
SPLITS = {"IID": None, f"Dirichlet({CONCENTRATION})": CONCENTRATION}
METHODS_COMPARED = {
    "Softmax SGM": STUDY.methods["Softmax SGM"],
    "Average SGM": AVERAGE,
    "Penalty": STUDY.methods["Penalty"],
    "Primal-dual": STUDY.methods["Primal-dual"],
}


def run(scale: Scale) -> Outcome:
    """Run all methods at the paper's settings on IID and on Dirichlet clients."""
    figure, axes = make_narrow_panels(len(STUDY.schemes(scale)), 3, "Clients that differ: IID against Dirichlet splits")
    methods = scale.pick(METHODS_COMPARED, {method: METHODS_COMPARED[method] for method in list(METHODS_COMPARED)[:2]})
    rows: list[Row] = []
    claims: list[Claim] = []
    for row, scheme in zip(axes, STUDY.schemes(scale), strict=True):
        at: dict[tuple[str, str], list[Point]] = {}
        for split, concentration in SPLITS.items():
            # Without evaluations, all splits share one compiled program.
            runs = STUDY.run(methods, scheme, scale, variant={"concentration": concentration})
            tasks = STUDY.tasks(scale.seeds, concentration=concentration)
            for method, results in runs.items():
                at[split, method] = answers(results, tasks)
                rows += answer_rows(at[split, method], scheme=scheme.name, split=split, method=method)
        _draw(row, at, scheme)
        claims += _claims(at, scheme, scale)
    for panel in axes[:, 1:].flat:
        plot_tolerance(panel, TOLERANCE)
    add_legend(figure, [axes[0, 0], axes[0, 2]], columns=5)
    return Outcome(figure, {"answers": rows}, tuple(claims))


def _draw(row: Any, at: dict[tuple[str, str], list[Point]], scheme: Scheme) -> None:
    for panel, name, title in zip(row[:2], ("worst_objective", "worst_constraint"), ("F", "G"), strict=True):
        for m, method in enumerate(dict.fromkeys(method for _, method in at)):
            for s, split in enumerate(SPLITS):
                values = values_of(at[split, method], name)
                place = s + 0.2 * (m - 1.5)
                label = method if s == 0 else None
                panel.bar(place, np.mean(values), width=0.18, color=METHODS[method], label=label)
                panel.plot([place] * len(values), values, ".", color="black", markersize=4)
        panel.set(title=f"{title}, a dot a seed  ({scheme.name})", xticks=[0, 1], xticklabels=list(SPLITS))
    for m, method in enumerate(("Softmax SGM", "Average SGM")):
        points = at[list(SPLITS)[1], method]
        # Clients without a malignant case have no constraint. They are sorted last and ignored in the mean of a rank.
        ranked = np.array([np.sort(p.constraint)[::-1] for p in points])
        has_constraint = np.isfinite(ranked)
        rank = np.flatnonzero(has_constraint.any(axis=0))
        height = np.where(has_constraint, ranked, 0).sum(axis=0)[rank] / has_constraint.sum(axis=0)[rank]
        row[2].bar(rank + 1 + 0.4 * m - 0.2, height, width=0.4, color=METHODS[method])
    row[2].set(
        title=f"Dirichlet: g of each client  ({scheme.name})", xlabel="client, worst first", xticks=[1, 5, 10, 15, 20]
    )


def _claims(at: dict[tuple[str, str], list[Point]], scheme: Scheme, scale: Scale) -> list[Claim]:
    iid, skewed = SPLITS
    softmax = at[skewed, "Softmax SGM"]
    sizes = [task.train.stratum_sizes for task in STUDY.tasks(scale.seeds, concentration=CONCENTRATION)]
    without = np.mean([(counts[:, 1] == 0).sum() for counts in sizes])
    others = {
        method: mean(at[skewed, method], "worst_constraint")
        for split, method in at
        if split == skewed and method != "Softmax SGM"
    }
    claims = [
        Claim(
            f"{scheme.name}: Softmax SGM meets G <= {TOLERANCE} on Dirichlet clients too",
            mean(softmax, "worst_constraint") <= TOLERANCE,
            f"G {mean(softmax, 'worst_constraint'):.3f}, {mean(softmax, 'violating'):.1f} of {CLIENTS} clients violate "
            f"(IID: {mean(at[iid, 'Softmax SGM'], 'worst_constraint'):.3f}, "
            f"{mean(at[iid, 'Softmax SGM'], 'violating'):.1f}); {without:.1f} clients have no malignant case",
        ),
        Claim(
            f"{scheme.name}: the other methods violate it at the worst client",
            min(others.values()) > TOLERANCE,
            ", ".join(f"{method} {value:.3f}" for method, value in others.items()),
        ),
    ]
    if scale.seeds > 1:
        spread = {split: np.std(values_of(at[split, "Softmax SGM"], "worst_objective"), ddof=1) for split in SPLITS}
        claims.append(
            Claim(
                f"{scheme.name}: what the worst client gets depends on the split: F scatters at least twice as much",
                bool(spread[skewed] >= 2 * spread[iid]),
                f"deviation of F {spread[iid]:.3f} with IID clients, {spread[skewed]:.3f} with Dirichlet clients",
            )
        )
    return claims


EXPERIMENT = Experiment("np-noniid", "IID against Dirichlet clients, ragged and some without a class", run)
