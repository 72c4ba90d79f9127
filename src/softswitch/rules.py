"""The methods, and what a rule reads and answers. Each has a file of its own in ``softswitch.method.rules``."""

from typing import TYPE_CHECKING

from softswitch.support.lazy import on_first_use

if TYPE_CHECKING:
    from softswitch.method.rules import AverageSGM as AverageSGM
    from softswitch.method.rules import Decision as Decision
    from softswitch.method.rules import HardSGM as HardSGM
    from softswitch.method.rules import LocalLoss as LocalLoss
    from softswitch.method.rules import Penalty as Penalty
    from softswitch.method.rules import PrimalDual as PrimalDual
    from softswitch.method.rules import Reports as Reports
    from softswitch.method.rules import Rule as Rule
    from softswitch.method.rules import SoftmaxSGM as SoftmaxSGM
    from softswitch.method.rules.switching import switch as switch
    from softswitch.method.steps import FallingStep as FallingStep
    from softswitch.method.steps import NormalizedAdam as NormalizedAdam
    from softswitch.problem.words import CRITERIA as CRITERIA

_PLACES = {
    "AverageSGM": "method.rules",
    "CRITERIA": "problem.words",
    "Decision": "method.rules",
    "FallingStep": "method.steps",
    "HardSGM": "method.rules",
    "LocalLoss": "method.rules",
    "NormalizedAdam": "method.steps",
    "Penalty": "method.rules",
    "PrimalDual": "method.rules",
    "Reports": "method.rules",
    "Rule": "method.rules",
    "SoftmaxSGM": "method.rules",
    "switch": "method.rules.switching",
}
"""Where each name lives."""

__all__ = list(_PLACES)
__getattr__, __dir__ = on_first_use(__name__, _PLACES)
