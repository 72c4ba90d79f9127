"""Every figure of the paper, and some beside, by one command each."""

from typing import TYPE_CHECKING

from softswitch.support.lazy import on_first_use

if TYPE_CHECKING:
    from softswitch.paper.all_experiments import EXPERIMENTS as EXPERIMENTS
    from softswitch.paper.experiment import Claim as Claim
    from softswitch.paper.experiment import Experiment as Experiment
    from softswitch.paper.experiment import Outcome as Outcome
    from softswitch.paper.experiment import Scale as Scale

_PLACES = {
    "EXPERIMENTS": "paper.all_experiments",
    "Claim": "paper.experiment",
    "Experiment": "paper.experiment",
    "Outcome": "paper.experiment",
    "Scale": "paper.experiment",
}
__getattr__, __dir__ = on_first_use(__name__, _PLACES)
