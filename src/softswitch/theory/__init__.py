"""Functions for the paper's theorems and for further results of its analysis, loaded on first use."""

from typing import TYPE_CHECKING

from softswitch.support.startup import lazy_attributes

if TYPE_CHECKING:
    from softswitch.theory.theorems import Bound as Bound
    from softswitch.theory.theorems import Constants as Constants
    from softswitch.theory.theorems import Setting as Setting
    from softswitch.theory.theorems import bound as bound
    from softswitch.theory.theorems import constraint_bound as constraint_bound
    from softswitch.theory.theorems import effective_variance as effective_variance
    from softswitch.theory.theorems import general_threshold as general_threshold
    from softswitch.theory.theorems import heterogeneity as heterogeneity
    from softswitch.theory.theorems import max_local_steps as max_local_steps
    from softswitch.theory.theorems import min_gradient_rows as min_gradient_rows
    from softswitch.theory.theorems import min_switch_share as min_switch_share
    from softswitch.theory.theorems import sampling_error as sampling_error
    from softswitch.theory.theorems import theorem_1 as theorem_1
    from softswitch.theory.theorems import theorem_2 as theorem_2
    from softswitch.theory.theorems import theorem_3 as theorem_3

__all__, __getattr__, __dir__ = lazy_attributes(__name__)
