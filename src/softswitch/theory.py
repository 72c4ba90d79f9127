"""The paper's theorems as functions: from settings to errors, and what else its analysis gives."""

from typing import TYPE_CHECKING

from softswitch.support.lazy import on_first_use

if TYPE_CHECKING:
    from softswitch.guarantees.theory.client_gaps import GAPS as GAPS
    from softswitch.guarantees.theory.client_gaps import gap_quantile as gap_quantile
    from softswitch.guarantees.theory.client_gaps import heterogeneity as heterogeneity
    from softswitch.guarantees.theory.client_gaps import quantile_bound as quantile_bound
    from softswitch.guarantees.theory.extremes import NOISES as NOISES
    from softswitch.guarantees.theory.extremes import ExtremeValueLimit as ExtremeValueLimit
    from softswitch.guarantees.theory.extremes import expected_gap as expected_gap
    from softswitch.guarantees.theory.extremes import extreme_value_limit as extreme_value_limit
    from softswitch.guarantees.theory.theorems import Bound as Bound
    from softswitch.guarantees.theory.theorems import Constants as Constants
    from softswitch.guarantees.theory.theorems import Setting as Setting
    from softswitch.guarantees.theory.theorems import bound as bound
    from softswitch.guarantees.theory.theorems import constraint_bound as constraint_bound
    from softswitch.guarantees.theory.theorems import effective_variance as effective_variance
    from softswitch.guarantees.theory.theorems import fewest_gradient_rows as fewest_gradient_rows
    from softswitch.guarantees.theory.theorems import general_threshold as general_threshold
    from softswitch.guarantees.theory.theorems import least_switch_share as least_switch_share
    from softswitch.guarantees.theory.theorems import most_local_steps as most_local_steps
    from softswitch.guarantees.theory.theorems import sampling_error as sampling_error
    from softswitch.guarantees.theory.theorems import staleness as staleness
    from softswitch.guarantees.theory.theorems import tail_bound as tail_bound
    from softswitch.guarantees.theory.theorems import theorem_1 as theorem_1
    from softswitch.guarantees.theory.theorems import theorem_2 as theorem_2
    from softswitch.guarantees.theory.theorems import theorem_3 as theorem_3
    from softswitch.guarantees.theory.two_clients import AlphaWindow as AlphaWindow
    from softswitch.guarantees.theory.two_clients import alpha_window as alpha_window
    from softswitch.guarantees.theory.two_clients import limit_cycle as limit_cycle

_PLACES = {
    "AlphaWindow": "guarantees.theory.two_clients",
    "Bound": "guarantees.theory.theorems",
    "Constants": "guarantees.theory.theorems",
    "ExtremeValueLimit": "guarantees.theory.extremes",
    "GAPS": "guarantees.theory.client_gaps",
    "NOISES": "guarantees.theory.extremes",
    "Setting": "guarantees.theory.theorems",
    "alpha_window": "guarantees.theory.two_clients",
    "bound": "guarantees.theory.theorems",
    "constraint_bound": "guarantees.theory.theorems",
    "effective_variance": "guarantees.theory.theorems",
    "expected_gap": "guarantees.theory.extremes",
    "extreme_value_limit": "guarantees.theory.extremes",
    "fewest_gradient_rows": "guarantees.theory.theorems",
    "gap_quantile": "guarantees.theory.client_gaps",
    "general_threshold": "guarantees.theory.theorems",
    "heterogeneity": "guarantees.theory.client_gaps",
    "least_switch_share": "guarantees.theory.theorems",
    "limit_cycle": "guarantees.theory.two_clients",
    "most_local_steps": "guarantees.theory.theorems",
    "quantile_bound": "guarantees.theory.client_gaps",
    "sampling_error": "guarantees.theory.theorems",
    "staleness": "guarantees.theory.theorems",
    "tail_bound": "guarantees.theory.theorems",
    "theorem_1": "guarantees.theory.theorems",
    "theorem_2": "guarantees.theory.theorems",
    "theorem_3": "guarantees.theory.theorems",
}
"""Where each name lives."""

__all__ = list(_PLACES)
__getattr__, __dir__ = on_first_use(__name__, _PLACES)
