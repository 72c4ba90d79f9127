"""The figures of the paper, and some additional ones, each by one command."""

from typing import TYPE_CHECKING

from softswitch.support.startup import lazy_attributes

if TYPE_CHECKING:
    from softswitch_experiments.paper.all_experiments import EXPERIMENTS as EXPERIMENTS

__all__, __getattr__, __dir__ = lazy_attributes(__name__)
