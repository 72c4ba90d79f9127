"""softswitch: one model over many clients, the worst-off as well as possible, every constraint met.

The public names are imported when they are first used: a client at the other end of a network needs few of them.
"""

from typing import TYPE_CHECKING

from softswitch.first_use import on_first_use

if TYPE_CHECKING:
    from softswitch.certificate import Certificate as Certificate
    from softswitch.certificate import Verdict as Verdict
    from softswitch.certifying import certify as certify
    from softswitch.checkpoints import Checkpoints as Checkpoints
    from softswitch.clients import ClientData as ClientData
    from softswitch.diagnosis import Finding as Finding
    from softswitch.domains import Ball as Ball
    from softswitch.domains import Box as Box
    from softswitch.estimate import estimate_constants as estimate_constants
    from softswitch.estimators import NeymanPearsonClassifier as NeymanPearsonClassifier
    from softswitch.estimators import ParityClassifier as ParityClassifier
    from softswitch.federation import Federation as Federation
    from softswitch.history import ClientHistory as ClientHistory
    from softswitch.history import History as History
    from softswitch.means import mean_over as mean_over
    from softswitch.models import load as load
    from softswitch.planning import plan as plan
    from softswitch.plans import Plan as Plan
    from softswitch.problem import PooledConstraint as PooledConstraint
    from softswitch.problem import Problem as Problem
    from softswitch.result import Result as Result
    from softswitch.rules import AverageSGM as AverageSGM
    from softswitch.rules import HardSGM as HardSGM
    from softswitch.rules import Penalty as Penalty
    from softswitch.rules import PrimalDual as PrimalDual
    from softswitch.rules import SoftmaxSGM as SoftmaxSGM
    from softswitch.solving import evaluate as evaluate
    from softswitch.solving import solve as solve
    from softswitch.solving import solve_federation as solve_federation
    from softswitch.splits import split_by_column as split_by_column
    from softswitch.splits import split_dirichlet as split_dirichlet
    from softswitch.splits import split_iid as split_iid
    from softswitch.status import Status as Status
    from softswitch.status import StatusCode as StatusCode
    from softswitch.sweeping import Sweep as Sweep
    from softswitch.sweeping import sweep as sweep
    from softswitch.sweeping import sweep_federation as sweep_federation
    from softswitch.theory import Constants as Constants
    from softswitch.theory import alpha_window as alpha_window
    from softswitch.theory import heterogeneity as heterogeneity
    from softswitch.tracking import Chunk as Chunk
    from softswitch.weighting import softmax_mean as softmax_mean
    from softswitch.weighting import softmax_weights as softmax_weights

_ROOMS = {
    "AverageSGM": "rules",
    "Ball": "domains",
    "Box": "domains",
    "Certificate": "certificate",
    "Checkpoints": "checkpoints",
    "Chunk": "tracking",
    "ClientData": "clients",
    "ClientHistory": "history",
    "Constants": "theory",
    "Federation": "federation",
    "Finding": "diagnosis",
    "HardSGM": "rules",
    "History": "history",
    "NeymanPearsonClassifier": "estimators",
    "ParityClassifier": "estimators",
    "Penalty": "rules",
    "Plan": "plans",
    "PooledConstraint": "problem",
    "PrimalDual": "rules",
    "Problem": "problem",
    "Result": "result",
    "SoftmaxSGM": "rules",
    "Status": "status",
    "StatusCode": "status",
    "Sweep": "sweeping",
    "Verdict": "certificate",
    "alpha_window": "theory",
    "certify": "certifying",
    "estimate_constants": "estimate",
    "evaluate": "solving",
    "heterogeneity": "theory",
    "load": "models",
    "mean_over": "means",
    "plan": "planning",
    "softmax_mean": "weighting",
    "softmax_weights": "weighting",
    "solve": "solving",
    "solve_federation": "solving",
    "split_by_column": "splits",
    "split_dirichlet": "splits",
    "split_iid": "splits",
    "sweep": "sweeping",
    "sweep_federation": "sweeping",
}
"""Where each public name lives."""

__all__ = list(_ROOMS)
__getattr__, __dir__ = on_first_use(__name__, _ROOMS)
