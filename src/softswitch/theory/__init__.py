"""The paper's theorems as functions, and further results of its analysis."""

from typing import TYPE_CHECKING

from softswitch.support.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from softswitch.theory.client_gaps import GAPS as GAPS
    from softswitch.theory.client_gaps import NOISES as NOISES
    from softswitch.theory.client_gaps import ExtremeValueLimit as ExtremeValueLimit
    from softswitch.theory.client_gaps import expected_gap as expected_gap
    from softswitch.theory.client_gaps import extreme_value_limit as extreme_value_limit
    from softswitch.theory.client_gaps import gap_quantile as gap_quantile
    from softswitch.theory.client_gaps import heterogeneity as heterogeneity
    from softswitch.theory.client_gaps import quantile_bound as quantile_bound
    from softswitch.theory.theorems import Bound as Bound
    from softswitch.theory.theorems import Constants as Constants
    from softswitch.theory.theorems import Setting as Setting
    from softswitch.theory.theorems import bound as bound
    from softswitch.theory.theorems import constraint_bound as constraint_bound
    from softswitch.theory.theorems import effective_variance as effective_variance
    from softswitch.theory.theorems import general_threshold as general_threshold
    from softswitch.theory.theorems import max_local_steps as max_local_steps
    from softswitch.theory.theorems import min_gradient_rows as min_gradient_rows
    from softswitch.theory.theorems import min_switch_share as min_switch_share
    from softswitch.theory.theorems import sampling_error as sampling_error
    from softswitch.theory.theorems import staleness as staleness
    from softswitch.theory.theorems import tail_bound as tail_bound
    from softswitch.theory.theorems import theorem_1 as theorem_1
    from softswitch.theory.theorems import theorem_2 as theorem_2
    from softswitch.theory.theorems import theorem_3 as theorem_3
    from softswitch.theory.two_clients import AlphaWindow as AlphaWindow
    from softswitch.theory.two_clients import alpha_window as alpha_window
    from softswitch.theory.two_clients import limit_cycle as limit_cycle

_MODULES = {
    "AlphaWindow": "theory.two_clients",
    "Bound": "theory.theorems",
    "Constants": "theory.theorems",
    "ExtremeValueLimit": "theory.client_gaps",
    "GAPS": "theory.client_gaps",
    "NOISES": "theory.client_gaps",
    "Setting": "theory.theorems",
    "alpha_window": "theory.two_clients",
    "bound": "theory.theorems",
    "constraint_bound": "theory.theorems",
    "effective_variance": "theory.theorems",
    "expected_gap": "theory.client_gaps",
    "extreme_value_limit": "theory.client_gaps",
    "min_gradient_rows": "theory.theorems",
    "gap_quantile": "theory.client_gaps",
    "general_threshold": "theory.theorems",
    "heterogeneity": "theory.client_gaps",
    "min_switch_share": "theory.theorems",
    "limit_cycle": "theory.two_clients",
    "max_local_steps": "theory.theorems",
    "quantile_bound": "theory.client_gaps",
    "sampling_error": "theory.theorems",
    "staleness": "theory.theorems",
    "tail_bound": "theory.theorems",
    "theorem_1": "theory.theorems",
    "theorem_2": "theory.theorems",
    "theorem_3": "theory.theorems",
}
"""The module of each name."""

__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_attributes(__name__, _MODULES)
