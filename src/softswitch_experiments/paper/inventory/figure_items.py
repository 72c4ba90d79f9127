"""Figures and tables."""

from __future__ import annotations

from softswitch_experiments.paper.inventory.item import Item, Put
from softswitch_experiments.paper.inventory.ways_to_read import (
    DRAWN,
    EXACT,
    FAIR_AGAINST_TUNED,
    FAIR_COMPARISON,
    LOCAL_STEPS,
    MODEL,
    NP_AGAINST_TUNED,
    NP_AT_PAPERS_SETTINGS,
    carts,
)

THEORY = "softswitch.theory."
TASKS = "softswitch_experiments.tasks."
FIGURES = "Figures"
TABLES = "Tables"

FIGURE_ITEMS: tuple[Item, ...] = (
    Item(
        FIGURES,
        "Figure 1",
        "fig:NP_classification_main",
        "Neyman–Pearson: F and G against gradient evaluations, beside penalty and primal-dual",
        (TASKS + "neyman_pearson.breast_cancer",),
        (Put("np-comparison"), *NP_AT_PAPERS_SETTINGS, *NP_AGAINST_TUNED),
        reading=DRAWN + "; only the baselines tuned",
    ),
    Item(
        FIGURES,
        "Figure 2",
        "fig:alpha_sensitivity",
        "Neyman–Pearson: what α does",
        ("softswitch.SoftmaxSGM",),
        (Put("alpha-sensitivity"),),
        reading=DRAWN,
    ),
    Item(
        FIGURES,
        "Figure 3",
        "fig:fair_classification",
        "Adult with demographic parity: F and G, beside penalty and primal-dual",
        (TASKS + "fair_classification.adult",),
        (*FAIR_COMPARISON, *FAIR_AGAINST_TUNED),
        reading=MODEL + "; only the baselines tuned",
    ),
    Item(
        FIGURES,
        "Figure 4",
        "fig:federated_safe_rl",
        "ten carts on three planets: worst return and violations, beside Parallel CRPO",
        (TASKS + "safe_rl.cartpole",),
        carts(),
    ),
    Item(
        FIGURES,
        "Figure 5",
        "fig:alpha_tradeoff",
        "cobweb plot of the three regimes of αη",
        (THEORY + "limit_cycle",),
        (Put("alpha-tradeoff"),),
    ),
    Item(
        FIGURES,
        "Figure 6",
        "fig:fed_settings",
        "Neyman–Pearson over local epochs E and participation m/n",
        ("softswitch.solve",),
        (Put("local-steps"), Put("participation"), *LOCAL_STEPS),
        reading=DRAWN,
    ),
    Item(
        FIGURES,
        "Figure 7",
        "fig:sgm_comparison",
        "Neyman–Pearson: worst and mean client, Softmax SGM beside average SGM",
        ("softswitch.AverageSGM",),
        (Put("sgm-comparison"),),
        reading=DRAWN,
    ),
    Item(
        TABLES,
        "Table 1",
        "tab:oracle_complexity",
        "complexities beside those of Lan and Zhou",
        ("softswitch.plan",),
        (Put("error-budget", "with λ = 0"), Put("error-budget", "fewer rows a report cost more")),
        ("theory/test_plan.py::test_plan_is_the_inverse_of_the_bound",),
        EXACT,
        "Our side of the table. The other method is not implemented here.",
    ),
    Item(
        TABLES,
        "Table 2",
        "tab:detail_NP",
        "settings of the Neyman–Pearson experiment",
        (TASKS + "paper_settings", "softswitch_experiments.paper.neyman_pearson.np_study"),
        tests=("experiments/test_neyman_pearson.py::test_data_as_described",),
        reading=DRAWN,
    ),
    Item(
        TABLES,
        "Table 3",
        "tab:detail_fairness",
        "settings of the experiment on Adult",
        ("softswitch_experiments.paper.fair.adult_study",),
        (Put("fair-optimizer"),),
        ("experiments/test_adult.py::test_size_features_parameters_and_shares",),
        MODEL,
        "The step of 0.001 makes sense for Adam only.",
    ),
    Item(
        TABLES,
        "Table 4",
        "tab:fed_safe_rl_results",
        "306.6 rounds in violation against 379.2 of Parallel CRPO, and a worst return of 69.7 against 61.0",
        ("softswitch_experiments.paper.safe_rl.safe_rl_comparison",),
        carts(),
    ),
)
