"""softswitch: train one model over many clients, the worst-off as well as possible, every constraint met.

Public names are imported on first use: a client at the far end of a network needs few of them.
"""

from typing import TYPE_CHECKING

from softswitch.support.startup import lazy_attributes

if TYPE_CHECKING:
    from softswitch.certification.certify import certify as certify
    from softswitch.certification.client_optimum import with_regret as with_regret
    from softswitch.data.client_data import ClientData as ClientData
    from softswitch.data.splits import DataSplit as DataSplit
    from softswitch.data.streamed_data import StreamedData as StreamedData
    from softswitch.engine.baselines import add_baselines as add_baselines
    from softswitch.engine.certified import Certified as Certified
    from softswitch.engine.certified import solve_certified as solve_certified
    from softswitch.engine.frontier import frontier as frontier
    from softswitch.engine.solve import solve as solve
    from softswitch.engine.sweep import sweep as sweep
    from softswitch.methods.automatic import Automatic as Automatic
    from softswitch.methods.memory import Memory as Memory
    from softswitch.methods.multipliers import PrimalDual as PrimalDual
    from softswitch.methods.penalties import Penalty as Penalty
    from softswitch.methods.softmax_sgm import AverageSGM as AverageSGM
    from softswitch.methods.softmax_sgm import HardSGM as HardSGM
    from softswitch.methods.softmax_sgm import SoftmaxSGM as SoftmaxSGM
    from softswitch.methods.sqp import SQP as SQP
    from softswitch.oracles.base import Federation as Federation
    from softswitch.oracles.base import Oracle as Oracle
    from softswitch.oracles.options import Compute as Compute
    from softswitch.oracles.options import Logging as Logging
    from softswitch.oracles.options import Output as Output
    from softswitch.oracles.options import Sampling as Sampling
    from softswitch.oracles.options import TorchData as TorchData
    from softswitch.oracles.out_of_core import evaluate as evaluate
    from softswitch.privacy.settings import RecordPrivacy as RecordPrivacy
    from softswitch.problem.domains import Ball as Ball
    from softswitch.problem.domains import Box as Box
    from softswitch.problem.losses import event_rate as event_rate
    from softswitch.problem.losses import logistic_loss as logistic_loss
    from softswitch.problem.losses import mean_over as mean_over
    from softswitch.problem.problem import PooledConstraint as PooledConstraint
    from softswitch.problem.problem import Problem as Problem
    from softswitch.results.certificate import Certificate as Certificate
    from softswitch.results.checkpoints import Checkpoints as Checkpoints
    from softswitch.results.report.page import report as report
    from softswitch.results.result import Result as Result
    from softswitch.results.status import StatusCode as StatusCode
    from softswitch.tables.estimators import BoundedClassifier as BoundedClassifier
    from softswitch.tables.estimators import BoundedRegressor as BoundedRegressor
    from softswitch.tables.model import load as load

__all__, __getattr__, __dir__ = lazy_attributes(__name__)
