"""Functions for the paper's theorems and for further results of its analysis, loaded on first use."""

from typing import TYPE_CHECKING

from softswitch.support.startup import lazy_attributes

if TYPE_CHECKING:
    from softswitch_experiments.theory.pilot import estimate_constants as estimate_constants
    from softswitch_experiments.theory.statements import AlphaWindow as AlphaWindow
    from softswitch_experiments.theory.statements import alpha_window as alpha_window
    from softswitch_experiments.theory.statements import limit_cycle as limit_cycle
    from softswitch_experiments.theory.statements import tail_bound as tail_bound
    from softswitch_experiments.theory.theorems import Bound as Bound
    from softswitch_experiments.theory.theorems import Constants as Constants
    from softswitch_experiments.theory.theorems import Setting as Setting
    from softswitch_experiments.theory.theorems import bound as bound
    from softswitch_experiments.theory.theorems import constraint_bound as constraint_bound
    from softswitch_experiments.theory.theorems import effective_variance as effective_variance
    from softswitch_experiments.theory.theorems import general_threshold as general_threshold
    from softswitch_experiments.theory.theorems import heterogeneity as heterogeneity
    from softswitch_experiments.theory.theorems import max_local_steps as max_local_steps
    from softswitch_experiments.theory.theorems import min_gradient_rows as min_gradient_rows
    from softswitch_experiments.theory.theorems import min_switch_share as min_switch_share
    from softswitch_experiments.theory.theorems import sampling_error as sampling_error
    from softswitch_experiments.theory.theorems import theorem_1 as theorem_1
    from softswitch_experiments.theory.theorems import theorem_2 as theorem_2
    from softswitch_experiments.theory.theorems import theorem_3 as theorem_3

__all__, __getattr__, __dir__ = lazy_attributes(__name__)
