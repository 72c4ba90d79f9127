"""softswitch: one model over many clients, the worst-off as well as possible, every constraint met.

The public names are imported when they are first used: a client at the other end of a network needs few of them.
"""

from typing import TYPE_CHECKING

from softswitch.support.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from softswitch.certification.binomial import rows_to_certify as rows_to_certify
    from softswitch.certification.certifiability import Certifiability as Certifiability
    from softswitch.certification.certifiability import certifiability as certifiability
    from softswitch.certification.certify import certify as certify
    from softswitch.certification.client_optimum import client_optimum as client_optimum
    from softswitch.certification.optimality import lower_bound as lower_bound
    from softswitch.certification.optimality import with_lower_bound as with_lower_bound
    from softswitch.data.client_data import ClientData as ClientData
    from softswitch.data.splits import Parts as Parts
    from softswitch.data.splits import split_by_column as split_by_column
    from softswitch.data.splits import split_dirichlet as split_dirichlet
    from softswitch.data.splits import split_iid as split_iid
    from softswitch.data.streamed_data import StreamedData as StreamedData
    from softswitch.engine.baselines import add_baselines as add_baselines
    from softswitch.engine.certified import Certified as Certified
    from softswitch.engine.certified import solve_certified as solve_certified
    from softswitch.engine.frontier import frontier as frontier
    from softswitch.engine.solve import solve as solve
    from softswitch.engine.solve import solve_federation as solve_federation
    from softswitch.engine.sweep import Sweep as Sweep
    from softswitch.engine.sweep import sweep as sweep
    from softswitch.engine.sweep import sweep_federation as sweep_federation
    from softswitch.engine.torch import certify_torch as certify_torch
    from softswitch.engine.torch import solve_torch as solve_torch
    from softswitch.engine.torch import torch_federation as torch_federation
    from softswitch.methods.average_sgm import AverageSGM as AverageSGM
    from softswitch.methods.hard_sgm import HardSGM as HardSGM
    from softswitch.methods.memory import Memory as Memory
    from softswitch.methods.penalty import Penalty as Penalty
    from softswitch.methods.primal_dual import PrimalDual as PrimalDual
    from softswitch.methods.softmax_sgm import SoftmaxSGM as SoftmaxSGM
    from softswitch.methods.weighting import softmax_mean as softmax_mean
    from softswitch.methods.weighting import softmax_weights as softmax_weights
    from softswitch.oracles.base import Oracle as Oracle
    from softswitch.oracles.federation import Federation as Federation
    from softswitch.oracles.federation import make_federation as make_federation
    from softswitch.oracles.host import HostOracle as HostOracle
    from softswitch.oracles.out_of_core_evaluation import evaluate as evaluate
    from softswitch.privacy.account import PrivacyAccount as PrivacyAccount
    from softswitch.privacy.settings import RecordPrivacy as RecordPrivacy
    from softswitch.problem.domains import Ball as Ball
    from softswitch.problem.domains import Box as Box
    from softswitch.problem.domains import Domain as Domain
    from softswitch.problem.losses import logistic_loss as logistic_loss
    from softswitch.problem.losses import mean_over as mean_over
    from softswitch.problem.losses import share_over as share_over
    from softswitch.problem.pooled import PooledConstraint as PooledConstraint
    from softswitch.problem.problem import Problem as Problem
    from softswitch.results.baseline import Baseline as Baseline
    from softswitch.results.callbacks import Chunk as Chunk
    from softswitch.results.certificate import Certificate as Certificate
    from softswitch.results.certificate import Verdict as Verdict
    from softswitch.results.checkpoints import Checkpoints as Checkpoints
    from softswitch.results.diagnostic import Diagnostic as Diagnostic
    from softswitch.results.frontier import Frontier as Frontier
    from softswitch.results.history import ClientHistory as ClientHistory
    from softswitch.results.history import ClientOutcome as ClientOutcome
    from softswitch.results.history import History as History
    from softswitch.results.lower_bound import LowerBound as LowerBound
    from softswitch.results.report.page import report as report
    from softswitch.results.result import Result as Result
    from softswitch.results.status import Status as Status
    from softswitch.results.status import StatusCode as StatusCode
    from softswitch.tables.classifiers import NeymanPearsonClassifier as NeymanPearsonClassifier
    from softswitch.tables.classifiers import ParityClassifier as ParityClassifier
    from softswitch.tables.classifiers import RateClassifier as RateClassifier
    from softswitch.tables.estimator import worst_client_scorer as worst_client_scorer
    from softswitch.tables.model import load as load
    from softswitch.tables.regressors import BoundedRegressor as BoundedRegressor
    from softswitch.theory.client_gaps import heterogeneity as heterogeneity
    from softswitch.theory.pilot import estimate_constants as estimate_constants
    from softswitch.theory.plan import Plan as Plan
    from softswitch.theory.plan_search import plan as plan
    from softswitch.theory.theorems import Constants as Constants
    from softswitch.theory.two_clients import alpha_window as alpha_window

_MODULES = {
    "AverageSGM": "methods.average_sgm",
    "Ball": "problem.domains",
    "Baseline": "results.baseline",
    "BoundedRegressor": "tables.regressors",
    "Box": "problem.domains",
    "Certificate": "results.certificate",
    "Certified": "engine.certified",
    "Checkpoints": "results.checkpoints",
    "Chunk": "results.callbacks",
    "ClientData": "data.client_data",
    "ClientHistory": "results.history",
    "Constants": "theory.theorems",
    "Domain": "problem.domains",
    "ClientOutcome": "results.history",
    "Federation": "oracles.federation",
    "Diagnostic": "results.diagnostic",
    "Frontier": "results.frontier",
    "HardSGM": "methods.hard_sgm",
    "History": "results.history",
    "LowerBound": "results.lower_bound",
    "Memory": "methods.memory",
    "NeymanPearsonClassifier": "tables.classifiers",
    "ParityClassifier": "tables.classifiers",
    "Oracle": "oracles.base",
    "Parts": "data.splits",
    "Penalty": "methods.penalty",
    "Plan": "theory.plan",
    "PooledConstraint": "problem.pooled",
    "PrimalDual": "methods.primal_dual",
    "PrivacyAccount": "privacy.account",
    "Problem": "problem.problem",
    "RateClassifier": "tables.classifiers",
    "Certifiability": "certification.certifiability",
    "RecordPrivacy": "privacy.settings",
    "Result": "results.result",
    "HostOracle": "oracles.host",
    "SoftmaxSGM": "methods.softmax_sgm",
    "Status": "results.status",
    "StatusCode": "results.status",
    "StreamedData": "data.streamed_data",
    "Sweep": "engine.sweep",
    "Verdict": "results.certificate",
    "add_baselines": "engine.baselines",
    "alpha_window": "theory.two_clients",
    "certify_torch": "engine.torch",
    "certify": "certification.certify",
    "estimate_constants": "theory.pilot",
    "evaluate": "oracles.out_of_core_evaluation",
    "make_federation": "oracles.federation",
    "frontier": "engine.frontier",
    "heterogeneity": "theory.client_gaps",
    "load": "tables.model",
    "lower_bound": "certification.optimality",
    "logistic_loss": "problem.losses",
    "mean_over": "problem.losses",
    "client_optimum": "certification.client_optimum",
    "plan": "theory.plan_search",
    "certifiability": "certification.certifiability",
    "report": "results.report.page",
    "rows_to_certify": "certification.binomial",
    "share_over": "problem.losses",
    "softmax_mean": "methods.weighting",
    "softmax_weights": "methods.weighting",
    "solve": "engine.solve",
    "solve_certified": "engine.certified",
    "solve_federation": "engine.solve",
    "solve_torch": "engine.torch",
    "split_by_column": "data.splits",
    "split_dirichlet": "data.splits",
    "split_iid": "data.splits",
    "sweep": "engine.sweep",
    "sweep_federation": "engine.sweep",
    "torch_federation": "engine.torch",
    "with_lower_bound": "certification.optimality",
    "worst_client_scorer": "tables.estimator",
}
"""Where each name lives."""

__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_attributes(__name__, _MODULES)
