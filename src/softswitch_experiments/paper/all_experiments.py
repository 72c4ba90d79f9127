"""All experiments, each by its name."""

from functools import partial

from softswitch_experiments.paper import alpha_scale, comparison, tuning
from softswitch_experiments.paper.experiment import Experiment
from softswitch_experiments.paper.fair import (
    adult_study,
    fair_comparison,
    fair_frontier,
    fair_noniid,
    fair_readings,
    fair_sweeps,
    occupation_readings,
)
from softswitch_experiments.paper.neyman_pearson import (
    alpha_tradeoff,
    error_budget,
    np_noniid,
    np_readings,
    np_study,
    np_sweeps,
    sgm_comparison,
    step_readings,
)
from softswitch_experiments.paper.safe_rl import safe_rl_alpha, safe_rl_clients, safe_rl_comparison

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "np-comparison",
            "Softmax SGM, penalty and primal-dual against gradient evaluations",
            partial(comparison.compare, np_study.STUDY),
            together="np tuning",
        ),
        Experiment(
            "np-tuning",
            "final F and G of each method over its grid: how wide is the good region?",
            partial(tuning.run, np_study.STUDY),
            together="np tuning",
        ),
        np_readings.EXPERIMENT,
        np_readings.PARTIAL_EXPERIMENT,
        np_sweeps.ALPHA,
        np_sweeps.STEPS_EXPERIMENT,
        step_readings.EXPERIMENT,
        np_sweeps.PARTICIPATION,
        sgm_comparison.EXPERIMENT,
        np_noniid.EXPERIMENT,
        error_budget.EXPERIMENT,
        alpha_tradeoff.EXPERIMENT,
        fair_comparison.EXPERIMENT,
        Experiment(
            "fair-tuning",
            "Adult: final F and G of each method over its grid",
            partial(tuning.run, adult_study.STUDY),
            together="fair tuning",
        ),
        fair_readings.EXPERIMENT,
        fair_readings.PASSES_EXPERIMENT,
        fair_sweeps.CRITERION,
        fair_sweeps.ALPHA,
        fair_sweeps.OPTIMIZER,
        fair_noniid.EXPERIMENT,
        occupation_readings.EXPERIMENT,
        fair_frontier.EXPERIMENT,
        safe_rl_comparison.EXPERIMENT,
        safe_rl_alpha.EXPERIMENT,
        safe_rl_clients.EXPERIMENT,
        alpha_scale.EXPERIMENT,
    )
}
