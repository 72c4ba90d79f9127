"""The paper's theorems as functions: from settings to errors, and what else its analysis gives."""

from typing import TYPE_CHECKING

from softswitch.support.lazy import on_first_use

if TYPE_CHECKING:
    from softswitch.guarantees.client_gaps import GAPS as GAPS
    from softswitch.guarantees.client_gaps import gap_quantile as gap_quantile
    from softswitch.guarantees.client_gaps import heterogeneity as heterogeneity
    from softswitch.guarantees.client_gaps import quantile_bound as quantile_bound
    from softswitch.guarantees.extremes import NOISES as NOISES
    from softswitch.guarantees.extremes import ExtremeValueLimit as ExtremeValueLimit
    from softswitch.guarantees.extremes import expected_gap as expected_gap
    from softswitch.guarantees.extremes import extreme_value_limit as extreme_value_limit
    from softswitch.guarantees.theorems import AlphaWindow as AlphaWindow
    from softswitch.guarantees.theorems import Bound as Bound
    from softswitch.guarantees.theorems import Constants as Constants
    from softswitch.guarantees.theorems import Setting as Setting
    from softswitch.guarantees.theorems import alpha_window as alpha_window
    from softswitch.guarantees.theorems import bound as bound
    from softswitch.guarantees.theorems import constraint_bound as constraint_bound
    from softswitch.guarantees.theorems import effective_variance as effective_variance
    from softswitch.guarantees.theorems import fewest_gradient_rows as fewest_gradient_rows
    from softswitch.guarantees.theorems import general_threshold as general_threshold
    from softswitch.guarantees.theorems import least_switch_share as least_switch_share
    from softswitch.guarantees.theorems import limit_cycle as limit_cycle
    from softswitch.guarantees.theorems import most_local_steps as most_local_steps
    from softswitch.guarantees.theorems import sampling_error as sampling_error
    from softswitch.guarantees.theorems import staleness as staleness
    from softswitch.guarantees.theorems import tail_bound as tail_bound
    from softswitch.guarantees.theorems import theorem_1 as theorem_1
    from softswitch.guarantees.theorems import theorem_2 as theorem_2
    from softswitch.guarantees.theorems import theorem_3 as theorem_3

_PLACES = {
    "AlphaWindow": "guarantees.theorems",
    "Bound": "guarantees.theorems",
    "Constants": "guarantees.theorems",
    "ExtremeValueLimit": "guarantees.extremes",
    "GAPS": "guarantees.client_gaps",
    "NOISES": "guarantees.extremes",
    "Setting": "guarantees.theorems",
    "alpha_window": "guarantees.theorems",
    "bound": "guarantees.theorems",
    "constraint_bound": "guarantees.theorems",
    "effective_variance": "guarantees.theorems",
    "expected_gap": "guarantees.extremes",
    "extreme_value_limit": "guarantees.extremes",
    "fewest_gradient_rows": "guarantees.theorems",
    "gap_quantile": "guarantees.client_gaps",
    "general_threshold": "guarantees.theorems",
    "heterogeneity": "guarantees.client_gaps",
    "least_switch_share": "guarantees.theorems",
    "limit_cycle": "guarantees.theorems",
    "most_local_steps": "guarantees.theorems",
    "quantile_bound": "guarantees.client_gaps",
    "sampling_error": "guarantees.theorems",
    "staleness": "guarantees.theorems",
    "tail_bound": "guarantees.theorems",
    "theorem_1": "guarantees.theorems",
    "theorem_2": "guarantees.theorems",
    "theorem_3": "guarantees.theorems",
}
"""Where each name lives."""

__all__ = list(_PLACES)
__getattr__, __dir__ = on_first_use(__name__, _PLACES)
