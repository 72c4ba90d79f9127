"""softswitch: one model over many clients, the worst-off as well as possible, every constraint met."""

from softswitch.clients import ClientData
from softswitch.domains import Ball, Box
from softswitch.problem import PooledConstraint, Problem
from softswitch.result import Result, Status, StatusCode
from softswitch.rules import AverageSGM, HardSGM, Penalty, PrimalDual, SoftmaxSGM
from softswitch.solve import solve
from softswitch.splits import split_by_column, split_dirichlet, split_iid

__all__ = [
    "AverageSGM",
    "Ball",
    "Box",
    "ClientData",
    "HardSGM",
    "Penalty",
    "PooledConstraint",
    "PrimalDual",
    "Problem",
    "Result",
    "SoftmaxSGM",
    "Status",
    "StatusCode",
    "solve",
    "split_by_column",
    "split_dirichlet",
    "split_iid",
]
