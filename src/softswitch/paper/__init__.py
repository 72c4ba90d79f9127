"""Every figure of the paper, and some beside, by one command each."""

from softswitch.paper import (
    alpha_tradeoff,
    error_budget,
    np_comparison,
    np_noniid,
    np_sweeps,
    np_tuning,
    sgm_comparison,
)
from softswitch.paper.experiment import Claim, Experiment, Outcome, Scale, Written, regenerate

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        np_comparison.EXPERIMENT,
        np_tuning.EXPERIMENT,
        np_sweeps.ALPHA,
        np_sweeps.STEPS_EXPERIMENT,
        np_sweeps.PARTICIPATION,
        sgm_comparison.EXPERIMENT,
        np_noniid.EXPERIMENT,
        error_budget.EXPERIMENT,
        alpha_tradeoff.EXPERIMENT,
    )
}

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "Outcome", "Scale", "Written", "regenerate"]
