"""softswitch: one model over many clients, the worst-off as well as possible, every constraint met."""

from softswitch.clients import ClientData
from softswitch.domains import Ball, Box
from softswitch.history import ClientHistory, History
from softswitch.problem import PooledConstraint, Problem
from softswitch.result import Result, Status, StatusCode
from softswitch.rules import AverageSGM, HardSGM, Penalty, PrimalDual, SoftmaxSGM
from softswitch.solve import evaluate, solve
from softswitch.splits import split_by_column, split_dirichlet, split_iid
from softswitch.sweep import Sweep, sweep
from softswitch.tracking import Chunk
from softswitch.weighting import softmax_mean, softmax_weights

__all__ = [
    "AverageSGM",
    "Ball",
    "Box",
    "Chunk",
    "ClientData",
    "ClientHistory",
    "HardSGM",
    "History",
    "Penalty",
    "PooledConstraint",
    "PrimalDual",
    "Problem",
    "Result",
    "SoftmaxSGM",
    "Status",
    "StatusCode",
    "Sweep",
    "evaluate",
    "softmax_mean",
    "softmax_weights",
    "solve",
    "split_by_column",
    "split_dirichlet",
    "split_iid",
    "sweep",
]
