"""Draw the figures of the documentation: python docs/figures.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import softswitch as ss
from benchmarks import flat
from softswitch.methods.weighting import softmax_mean
from softswitch.theory import Setting, bound, limit_cycle
from softswitch.theory.theorems import Constants, alpha_window
from softswitch_experiments.plotting import BLUE, GREEN, GREY, VERMILLION, make_panels
from softswitch_experiments.tasks.demo import AVERAGE, CHOSEN, TOLERANCE, run_demo
from softswitch_experiments.tasks.neyman_pearson import breast_cancer
from softswitch_experiments.tasks.paper_settings import RUN, SOFTMAX_SWITCH, steps

IMAGES = Path(__file__).parent / "images"


def save(figure: Figure, name: str) -> None:
    """Write a figure to the folder of images."""
    IMAGES.mkdir(exist_ok=True)
    figure.savefig(IMAGES / name, dpi=150)
    print(IMAGES / name)


def draw_clients() -> None:
    """Draw every client's constraint for the home page, averaged over the demo's 5 seeds."""
    demo = run_demo()
    figure, ((axes,),) = make_panels(1, 1, width=8, height=3.2)
    shown = {AVERAGE: ("bound kept on average", VERMILLION), CHOSEN: ("bound kept at every client", BLUE)}
    for offset, (method, (label, colour)) in zip((-0.2, 0.2), shown.items(), strict=True):
        ranked = np.mean([np.sort(result.client_constraint[:, 0])[::-1] for result in demo.results[method]], axis=0)
        axes.bar(np.arange(1, len(ranked) + 1) + offset, ranked, width=0.4, color=colour, label=label)
    axes.axhline(TOLERANCE, color="black", linestyle="--", linewidth=1)
    axes.annotate("the bound", (len(ranked) + 0.5, TOLERANCE), xytext=(0, 4), textcoords="offset points", ha="right")
    axes.set(xlabel="client, worst first", ylabel="loss on malignant cases", xticks=[1, 5, 10, 15, 20])
    axes.legend(frameon=False)
    save(figure, "every-client.png")


def draw_alpha() -> None:
    """Draw the error of the softmax mean (left), and where iterates settle with two clients (right)."""
    figure, ((hides, settles),) = make_panels(1, 2, width=5)
    values = np.random.default_rng(0).uniform(0, 1, 20)
    alphas = np.logspace(0, 4, 200)
    hides.loglog(alphas, [values.max() - softmax_mean(values, a) for a in alphas], color=BLUE, label="20 clients")
    hides.loglog(alphas, np.log(20) / alphas, color=GREY, linestyle="--", label="bound ln(m)/α")
    hides.axhline(0.1, color=VERMILLION, linestyle=":", label="a tolerance of 0.1")
    hides.set(xlabel="α", ylabel="maximum − softmax mean", title="What the criterion hides", ylim=(1e-6, 5))
    hides.legend(frameon=False)

    products = np.linspace(0.02, 4, 300)
    settles.plot(products, [limit_cycle(p, 1.0) for p in products], color=BLUE, label="|w|/η in the end")
    window = alpha_window(1.0)
    settles.axvspan(window.adaptive_from, window.smooth_to, color=GREEN, alpha=0.2, label="useful window")
    settles.axvline(window.stable_to, color=VERMILLION, linestyle=":", label="limit cycles begin")
    settles.set(xlabel="αη", ylabel="distance from the optimum, in steps", title="f = ±w: where iterates settle")
    settles.legend(frameon=False)
    save(figure, "what-alpha-does.png")


def draw_alpha_on_data() -> None:
    """Draw F and G of the answer over α on breast cancer, with 20 clients and 5 seeds."""
    alphas = (0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0, 6400.0)
    methods = {f"{a:g}": ss.SoftmaxSGM(alpha=a, tolerance=0.1, **steps(0.5), **SOFTMAX_SWITCH) for a in alphas}
    task = breast_cancer(20)
    swept = flat.sweep(task.problem, task.train, methods, seeds=5, rounds=1000, batch_size=32, **RUN)
    figure, ((objective, constraint),) = make_panels(1, 2, width=5)
    for axes, name, label in (
        (objective, "worst_objective", "worst client's objective F"),
        (constraint, "worst_constraint", "worst client's constraint G"),
    ):
        values = np.array([[getattr(result, name) for result in results] for _, results in swept])
        axes.errorbar(alphas, values.mean(axis=1), values.std(axis=1, ddof=1), color=BLUE, marker="o", capsize=3)
        axes.set(xscale="log", xlabel="α", ylabel=label, ylim=(0, None))
    constraint.axhline(0.1, color=VERMILLION, linestyle=":", label="tolerance")
    constraint.axvline(np.log(20) / 0.1, color=GREY, linestyle="--", label="ln(m)/α = tolerance")
    constraint.legend(frameon=False)
    objective.set_title("Breast cancer, 20 clients, η = 0.5")
    constraint.set_title("mean ± deviation of 5 seeds")
    save(figure, "alpha-on-data.png")


def draw_error_budget() -> None:
    """Draw the three errors of the theory over rounds, batches and participation."""
    constants = Constants(2.0, 1.0, gradient_noise=0.5, value_noise=0.1, heterogeneity=0.1)
    base = Setting(clients=100, participants=50, rounds=10_000, local_steps=5, value_batch_size=1000)
    figure, axes = make_panels(1, 3, width=5)
    steps = {
        "rounds": ("rounds K", np.logspace(2, 6, 40).astype(int)),
        "value_batch_size": ("rows a report B_ζ", np.logspace(1, 5, 40).astype(int)),
        "participants": ("clients a round m, of 100", np.arange(5, 101)),
    }
    for panel, (name, (label, numbers)) in zip(axes[0], steps.items(), strict=True):
        bounds = [bound(constants, replace(base, **{name: int(number)})) for number in numbers]
        for error, colour in (("optimization", BLUE), ("estimation", VERMILLION), ("sampling", GREEN)):
            panel.plot(numbers, [getattr(b, error) for b in bounds], color=colour, label=error)
        panel.plot(numbers, [b.epsilon for b in bounds], color=GREY, linestyle="--", label="ε, their sum")
        panel.set(xlabel=label, ylim=(0, 1.5), xscale="linear" if name == "participants" else "log")
    axes[0, 0].set_ylabel("error")
    axes[0, 0].legend(frameon=False)
    save(figure, "error-budget.png")


if __name__ == "__main__":
    draw_clients()
    draw_alpha()
    draw_alpha_on_data()
    draw_error_budget()
