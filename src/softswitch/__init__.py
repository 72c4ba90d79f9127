"""softswitch: one model over many clients, the worst-off as well as possible, every constraint met.

The public names are imported when they are first used: a client at the other end of a network needs few of them.
"""

from typing import TYPE_CHECKING

from softswitch.support.lazy import on_first_use

if TYPE_CHECKING:
    from softswitch.clients.attacks import attacked as attacked
    from softswitch.clients.client_data import ClientData as ClientData
    from softswitch.clients.federation import Federation as Federation
    from softswitch.clients.oracle import Oracle as Oracle
    from softswitch.clients.parts import Parts as Parts
    from softswitch.clients.private.privacy_account import PrivacyAccount as PrivacyAccount
    from softswitch.clients.private.record_privacy import RecordPrivacy as RecordPrivacy
    from softswitch.clients.round_by_round import RoundByRound as RoundByRound
    from softswitch.clients.splits import split_by_column as split_by_column
    from softswitch.clients.splits import split_dirichlet as split_dirichlet
    from softswitch.clients.splits import split_iid as split_iid
    from softswitch.clients.streamed.judged_anywhere import evaluate as evaluate
    from softswitch.clients.streamed.streamed_data import StreamedData as StreamedData
    from softswitch.clients.taking_part import federation_of as federation_of
    from softswitch.engines.certified import Certified as Certified
    from softswitch.engines.certified import solve_certified as solve_certified
    from softswitch.engines.frontier import frontier as frontier
    from softswitch.engines.solve import solve as solve
    from softswitch.engines.solve import solve_federation as solve_federation
    from softswitch.engines.sweep import Sweep as Sweep
    from softswitch.engines.sweep import sweep as sweep
    from softswitch.engines.sweep import sweep_federation as sweep_federation
    from softswitch.engines.torch_modules.torch_certificate import certify_torch as certify_torch
    from softswitch.engines.torch_modules.torch_runs import solve_torch as solve_torch
    from softswitch.engines.torch_modules.torch_runs import torch_federation as torch_federation
    from softswitch.engines.unconstrained import add_baselines as add_baselines
    from softswitch.guarantees.optimality.best_possible import lower_bound as lower_bound
    from softswitch.guarantees.optimality.best_possible import with_lower_bound as with_lower_bound
    from softswitch.guarantees.optimality.own_best import own_best as own_best
    from softswitch.guarantees.theory.client_gaps import heterogeneity as heterogeneity
    from softswitch.guarantees.theory.pilot import estimate_constants as estimate_constants
    from softswitch.guarantees.theory.plan import Plan as Plan
    from softswitch.guarantees.theory.plan_search import plan as plan
    from softswitch.guarantees.theory.theorems import Constants as Constants
    from softswitch.guarantees.theory.two_clients import alpha_window as alpha_window
    from softswitch.guarantees.unseen_rows.beforehand import Reach as Reach
    from softswitch.guarantees.unseen_rows.beforehand import reach as reach
    from softswitch.guarantees.unseen_rows.binomial import rows_to_certify as rows_to_certify
    from softswitch.guarantees.unseen_rows.certify import certify as certify
    from softswitch.method.memory import Memory as Memory
    from softswitch.method.rules import AverageSGM as AverageSGM
    from softswitch.method.rules import HardSGM as HardSGM
    from softswitch.method.rules import Penalty as Penalty
    from softswitch.method.rules import PrimalDual as PrimalDual
    from softswitch.method.rules import SoftmaxSGM as SoftmaxSGM
    from softswitch.method.weighting import softmax_mean as softmax_mean
    from softswitch.method.weighting import softmax_weights as softmax_weights
    from softswitch.problem.domains import Ball as Ball
    from softswitch.problem.domains import Box as Box
    from softswitch.problem.domains import Domain as Domain
    from softswitch.problem.logistic import logistic_loss as logistic_loss
    from softswitch.problem.means import mean_over as mean_over
    from softswitch.problem.means import share_over as share_over
    from softswitch.problem.pooled import PooledConstraint as PooledConstraint
    from softswitch.problem.problem import Problem as Problem
    from softswitch.results.along_bounds.cost_of_bounds import Frontier as Frontier
    from softswitch.results.baseline import Baseline as Baseline
    from softswitch.results.certificate import Certificate as Certificate
    from softswitch.results.certificate import Verdict as Verdict
    from softswitch.results.findings.finding import Finding as Finding
    from softswitch.results.history import ClientHistory as ClientHistory
    from softswitch.results.history import Fate as Fate
    from softswitch.results.history import History as History
    from softswitch.results.lower_bound import LowerBound as LowerBound
    from softswitch.results.result import Result as Result
    from softswitch.results.status import Status as Status
    from softswitch.results.status import StatusCode as StatusCode
    from softswitch.runs.checkpoints import Checkpoints as Checkpoints
    from softswitch.runs.report.of_result import report as report
    from softswitch.runs.watching import Chunk as Chunk
    from softswitch.tables.estimators.classifiers import NeymanPearsonClassifier as NeymanPearsonClassifier
    from softswitch.tables.estimators.classifiers import ParityClassifier as ParityClassifier
    from softswitch.tables.estimators.classifiers import RateClassifier as RateClassifier
    from softswitch.tables.estimators.regressors import BoundedRegressor as BoundedRegressor
    from softswitch.tables.estimators.scorers import worst_client_scorer as worst_client_scorer
    from softswitch.tables.model import load as load

_PLACES = {
    "AverageSGM": "method.rules",
    "Ball": "problem.domains",
    "Baseline": "results.baseline",
    "BoundedRegressor": "tables.estimators.regressors",
    "Box": "problem.domains",
    "Certificate": "results.certificate",
    "Certified": "engines.certified",
    "Checkpoints": "runs.checkpoints",
    "Chunk": "runs.watching",
    "ClientData": "clients.client_data",
    "ClientHistory": "results.history",
    "Constants": "guarantees.theory.theorems",
    "Domain": "problem.domains",
    "Fate": "results.history",
    "Federation": "clients.federation",
    "Finding": "results.findings.finding",
    "Frontier": "results.along_bounds.cost_of_bounds",
    "HardSGM": "method.rules",
    "History": "results.history",
    "LowerBound": "results.lower_bound",
    "Memory": "method.memory",
    "NeymanPearsonClassifier": "tables.estimators.classifiers",
    "ParityClassifier": "tables.estimators.classifiers",
    "Oracle": "clients.oracle",
    "Parts": "clients.parts",
    "Penalty": "method.rules",
    "Plan": "guarantees.theory.plan",
    "PooledConstraint": "problem.pooled",
    "PrimalDual": "method.rules",
    "PrivacyAccount": "clients.private.privacy_account",
    "Problem": "problem.problem",
    "RateClassifier": "tables.estimators.classifiers",
    "Reach": "guarantees.unseen_rows.beforehand",
    "RecordPrivacy": "clients.private.record_privacy",
    "Result": "results.result",
    "RoundByRound": "clients.round_by_round",
    "SoftmaxSGM": "method.rules",
    "Status": "results.status",
    "StatusCode": "results.status",
    "StreamedData": "clients.streamed.streamed_data",
    "Sweep": "engines.sweep",
    "Verdict": "results.certificate",
    "add_baselines": "engines.unconstrained",
    "attacked": "clients.attacks",
    "alpha_window": "guarantees.theory.two_clients",
    "certify_torch": "engines.torch_modules.torch_certificate",
    "certify": "guarantees.unseen_rows.certify",
    "estimate_constants": "guarantees.theory.pilot",
    "evaluate": "clients.streamed.judged_anywhere",
    "federation_of": "clients.taking_part",
    "frontier": "engines.frontier",
    "heterogeneity": "guarantees.theory.client_gaps",
    "load": "tables.model",
    "lower_bound": "guarantees.optimality.best_possible",
    "logistic_loss": "problem.logistic",
    "mean_over": "problem.means",
    "own_best": "guarantees.optimality.own_best",
    "plan": "guarantees.theory.plan_search",
    "reach": "guarantees.unseen_rows.beforehand",
    "report": "runs.report.of_result",
    "rows_to_certify": "guarantees.unseen_rows.binomial",
    "share_over": "problem.means",
    "softmax_mean": "method.weighting",
    "softmax_weights": "method.weighting",
    "solve": "engines.solve",
    "solve_certified": "engines.certified",
    "solve_federation": "engines.solve",
    "solve_torch": "engines.torch_modules.torch_runs",
    "split_by_column": "clients.splits",
    "split_dirichlet": "clients.splits",
    "split_iid": "clients.splits",
    "sweep": "engines.sweep",
    "sweep_federation": "engines.sweep",
    "torch_federation": "engines.torch_modules.torch_runs",
    "with_lower_bound": "guarantees.optimality.best_possible",
    "worst_client_scorer": "tables.estimators.scorers",
}
"""Where each name lives."""

__all__ = list(_PLACES)
__getattr__, __dir__ = on_first_use(__name__, _PLACES)
