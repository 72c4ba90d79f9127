"""softswitch: one model over many clients, the worst-off as well as possible, every constraint met."""

from softswitch.certificate import Certificate, Verdict
from softswitch.certify import certify
from softswitch.checkpoints import Checkpoints
from softswitch.clients import ClientData
from softswitch.diagnosis import Finding
from softswitch.domains import Ball, Box
from softswitch.estimate import estimate_constants
from softswitch.estimators import NeymanPearsonClassifier, ParityClassifier
from softswitch.federation import Federation
from softswitch.history import ClientHistory, History
from softswitch.means import mean_over
from softswitch.models import load
from softswitch.plan import Plan
from softswitch.planning import plan
from softswitch.problem import PooledConstraint, Problem
from softswitch.result import Result
from softswitch.rules import AverageSGM, HardSGM, Penalty, PrimalDual, SoftmaxSGM
from softswitch.solve import evaluate, solve, solve_federation
from softswitch.splits import split_by_column, split_dirichlet, split_iid
from softswitch.status import Status, StatusCode
from softswitch.sweep import Sweep, sweep, sweep_federation
from softswitch.theory import Constants, alpha_window, heterogeneity
from softswitch.tracking import Chunk
from softswitch.weighting import softmax_mean, softmax_weights

__all__ = [
    "AverageSGM",
    "Ball",
    "Box",
    "Certificate",
    "Checkpoints",
    "Chunk",
    "ClientData",
    "ClientHistory",
    "Constants",
    "Federation",
    "Finding",
    "HardSGM",
    "History",
    "NeymanPearsonClassifier",
    "ParityClassifier",
    "Penalty",
    "Plan",
    "PooledConstraint",
    "PrimalDual",
    "Problem",
    "Result",
    "SoftmaxSGM",
    "Status",
    "StatusCode",
    "Sweep",
    "Verdict",
    "alpha_window",
    "certify",
    "estimate_constants",
    "evaluate",
    "heterogeneity",
    "load",
    "mean_over",
    "plan",
    "softmax_mean",
    "softmax_weights",
    "solve",
    "solve_federation",
    "split_by_column",
    "split_dirichlet",
    "split_iid",
    "sweep",
    "sweep_federation",
]
