"""PyTorch modules whose clients keep their rows private, in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from softswitch.certification.private import count_rows_from_values
from softswitch.engine.private import FOR_JUDGING, PrivatePlan, planned, private_settings, run_planned, told_sizes
from softswitch.engine.request import RunSettings
from softswitch.methods.base import Method
from softswitch.oracles.federation import Federation
from softswitch.oracles.options import Logging, Sampling
from softswitch.oracles.torch_functions import ModuleFunctions, TorchRows, parameters
from softswitch.privacy.clipping import PLAIN_STEPS
from softswitch.privacy.oracle import NoiseDeviations
from softswitch.privacy.settings import RecordPrivacy, count_drawn_rows
from softswitch.privacy.torch_oracle import PrivateTorchOracle, describe_row_mixing, evaluate_rows, preserve_buffers
from softswitch.problem.domains import Domain
from softswitch.problem.problem import PooledConstraint
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.result import Result
from softswitch.support import checks


def solve_torch_privately(
    functions: ModuleFunctions,
    clients: Mapping[Any, TorchRows],
    method: Method,
    privacy: RecordPrivacy,
    sampling: Sampling,
    settings: RunSettings,
    domain: Domain | None,
    seed: int,
    logging: Logging,
    checkpoints: Checkpoints | None,
) -> Result:
    """Solve with a module and clients whose rows stay private; the module holds the answer afterwards.

    Args:
        functions: the module's.
        clients: their rows, by name.
        method: the method.
        privacy: how rows are kept private.
        sampling: which clients take part.
        settings: of the run.
        domain: what the parameters must lie in; or None.
        seed: of all random choices.
        logging: callbacks and progress bar.
        checkpoints: where the run is kept; None: nowhere.
    """
    rows = tuple(clients.values())
    _check(functions, rows, privacy)
    plan = planned(privacy, [len(own) for own in rows], private_settings(settings), sampling.local_steps)
    oracle = private_torch_oracle(functions, rows, plan, sampling, seed)
    federation = Federation(oracle, parameters(functions.module), tuple(clients), domain)
    result = run_planned(federation, method, plan, seed, logging, checkpoints)
    oracle.load_answer(result.params)
    return result


def private_torch_oracle(
    functions: ModuleFunctions, rows: Sequence[TorchRows], plan: PrivatePlan, sampling: Sampling, seed: int
) -> PrivateTorchOracle:
    """The clients of a private run.

    Args:
        functions: the module's.
        rows: the clients'.
        plan: what is settled.
        sampling: which clients take part.
        seed: of all random choices.
    """
    privacy, start = plan.privacy, parameters(functions.module)
    levels, fixed = plan.levels, privacy.sampling == "fixed" and privacy.rate < 1
    counts = told_sizes(plan, np.array([_concerned(functions, own, start) for own in rows]), jax.random.key(seed))
    taken = np.array([count_drawn_rows(privacy.rate, len(own)) for own in rows])
    return PrivateTorchOracle(
        functions,
        rows,
        participants=sampling.participants(len(rows)),
        local_steps=sampling.local_steps,
        counts=counts,
        taken=taken if fixed else None,
        shares=taken / [len(own) for own in rows] if fixed else np.full(len(rows), privacy.rate),
        noise=NoiseDeviations(
            levels.report * privacy.clip_value,
            levels.step * privacy.clip_gradient,
            levels.evaluation * privacy.clip_value,
        ),
        clips=(privacy.clip_value, privacy.clip_gradient),
        evaluation_seed=(seed, FOR_JUDGING),
    )


def _concerned(functions: ModuleFunctions, rows: TorchRows, start: dict[str, np.ndarray]) -> list[int]:
    """How many rows f and each g concern; raise where one is no mean over rows. The module is left at its start."""
    everything = np.arange(len(rows))

    def whole(params: Mapping[str, np.ndarray]) -> np.ndarray:
        functions.load(params)
        with preserve_buffers(functions.module):
            return functions.values(rows.all_rows())

    try:
        return count_rows_from_values(lambda params: evaluate_rows(functions, params, rows, everything), whole, start)
    finally:
        functions.load(start)


def _check(functions: ModuleFunctions, rows: Sequence[TorchRows], privacy: Any) -> None:
    """Raise for what cannot be private."""
    checks.check_instance("privacy", privacy, RecordPrivacy)
    if (why := describe_row_mixing(functions.module)) is not None:
        raise ValueError(why)
    if functions.optimizer is not None:
        raise ValueError(PLAIN_STEPS)
    if isinstance(functions.constraint, PooledConstraint):
        raise ValueError(
            "constraint must be no PooledConstraint with privacy: it is no mean over rows. Where the sizes of the "
            "groups are public, a gap between two groups is two constraints that are, one for each side"
        )
    if any(own.loader is not None for own in rows):
        raise ValueError(
            "clients must be Datasets with privacy, not DataLoaders: the privacy's rate says how rows are drawn"
        )
