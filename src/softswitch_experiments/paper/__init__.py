"""The figures of the paper, and some additional ones, each by one command."""

from typing import TYPE_CHECKING

from softswitch.support.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from softswitch_experiments.paper.all_experiments import EXPERIMENTS as EXPERIMENTS
    from softswitch_experiments.paper.experiment import Claim as Claim
    from softswitch_experiments.paper.experiment import Experiment as Experiment
    from softswitch_experiments.paper.experiment import Outcome as Outcome
    from softswitch_experiments.paper.experiment import Scale as Scale

_MODULES = {
    "EXPERIMENTS": "paper.all_experiments",
    "Claim": "paper.experiment",
    "Experiment": "paper.experiment",
    "Outcome": "paper.experiment",
    "Scale": "paper.experiment",
}
__getattr__, __dir__ = lazy_attributes(__name__, _MODULES)
