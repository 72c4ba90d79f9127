"""All experiments, by name."""

from functools import partial

from softswitch_experiments.paper import (
    adult_study,
    alpha_scale,
    alpha_tradeoff,
    comparison,
    error_budget,
    fair_comparison,
    fair_frontier,
    fair_noniid,
    fair_readings,
    fair_sweeps,
    np_noniid,
    np_readings,
    np_study,
    np_sweeps,
    safe_rl_clients,
    safe_rl_comparison,
    sgm_comparison,
    tuning,
)
from softswitch_experiments.paper.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "np-comparison",
            "Softmax SGM, penalty and primal-dual against gradient evaluations",
            partial(comparison.compare, np_study.STUDY),
            group="np tuning",
        ),
        Experiment(
            "np-tuning",
            "final F and G of each method over its grid: how wide is the good region?",
            partial(tuning.run, np_study.STUDY),
            group="np tuning",
        ),
        np_readings.EXPERIMENT,
        np_readings.PARTIAL_EXPERIMENT,
        np_sweeps.ALPHA,
        np_sweeps.STEPS_EXPERIMENT,
        np_readings.LOCAL_STEPS_EXPERIMENT,
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
            group="fair tuning",
        ),
        fair_readings.EXPERIMENT,
        fair_readings.PASSES_EXPERIMENT,
        fair_sweeps.CRITERION,
        fair_sweeps.ALPHA,
        fair_sweeps.OPTIMIZER,
        fair_noniid.EXPERIMENT,
        fair_readings.OCCUPATION_EXPERIMENT,
        fair_frontier.EXPERIMENT,
        safe_rl_comparison.EXPERIMENT,
        safe_rl_comparison.ALPHA_EXPERIMENT,
        safe_rl_clients.EXPERIMENT,
        alpha_scale.EXPERIMENT,
    )
}
