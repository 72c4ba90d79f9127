"""solve(): minimise the worst client's objective subject to every client's constraint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from softswitch.certification.optimality import with_lower_bound
from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.engine.loop import run
from softswitch.engine.private import solve_privately
from softswitch.engine.request import RunOptions, prepare_federation, prepare_run, resolve_method
from softswitch.engine.second_order import INSTEAD, attempt_second_order, better
from softswitch.methods.automatic import Automatic, OpenMethod, to_first_order
from softswitch.methods.base import Method
from softswitch.methods.sqp import SQP
from softswitch.oracles.base import Federation
from softswitch.oracles.derivatives import MAX_PARAMETERS
from softswitch.oracles.options import Compute, Logging, Output, Sampling, TorchData, changed_options
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.parameters import count_parameters
from softswitch.problem.problem import Problem
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.support import checks

TORCH_ENGINE = "softswitch.engine.torch"  # imported on first use


def solve(
    problem: Problem | Federation,
    clients: ClientData | StreamedData | TorchData | None = None,
    method: Method | Automatic | None = None,
    *,
    tolerance: float | None = None,
    rounds: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    sampling: Sampling | None = None,
    output: Output = Output(),  # noqa: B008 (frozen)
    compute: Compute = Compute(),  # noqa: B008
    logging: Logging = Logging(),  # noqa: B008
    checkpoints: Checkpoints | None = None,
    warm_start: Result | None = None,
    privacy: RecordPrivacy | None = None,
) -> Result:
    """Minimise the worst client's objective subject to every client's constraint.

    Give either a ``tolerance``, and all settings are chosen during the run, or a ``method`` with its settings, which
    then runs as published.

    Args:
        problem: Objective, constraint, start and domain; or a ``Federation``, whose oracle holds all of it.
        clients: The clients' data: ``ClientData`` in memory, ``StreamedData`` out of core, or ``TorchData`` for a
            problem whose start is a PyTorch module. None for a ``Federation``.
        method: Method with its settings, such as ``SoftmaxSGM(alpha=100, step_size=0.5, tolerance=0.1)``.
        tolerance: ε of an automatic run: the constraint is met if G(w) <= ε. In place of a method.
        rounds: Maximum number of rounds K. Default: 1000 for a method. Automatic runs stop when progress stalls if
            reports are exact, and otherwise use a budget of computations.
        seconds: Time limit in seconds, checked after every chunk of rounds, or exchange of ``SQP``. Default: no limit.
        seed: Seed of all random choices. The same seed gives the same result on the same machine.
        sampling: Which clients take part in a round, and which rows they use. Default: ``Sampling()`` for a method,
            ``Sampling.automatic()`` for an automatic run.
        output: Which iterate is returned, and what is computed about it.
        compute: Where and how clients compute.
        logging: What is recorded and shown during the run.
        checkpoints: Folder in which the run is saved and from which it resumes. A finished
            run continues if ``rounds`` is larger.
        warm_start: Result of an earlier run to continue from: its last iterate, its optimizer and its average. Round
            numbers start at 0.
        privacy: Record-level differential privacy: clients release clipped sums with noise only. The cost is in
            ``result.privacy``. The run is a simulation, because the noise is drawn from ``seed``; see
            ``RecordPrivacy`` for secret noise.

    Returns:
        A ``Result``. Ctrl-C stops the run early and returns the result so far, with status "stopped".
    """
    method = resolve_method(method, tolerance)
    options = RunOptions(
        rounds=rounds,
        seconds=seconds,
        seed=checks.check_seed("seed", seed),
        sampling=sampling,
        output=output,
        compute=compute,
        logging=logging,
        checkpoints=checkpoints,
        warm_start=warm_start,
        privacy=privacy,
    )
    if isinstance(problem, Problem):
        return solve_problem(problem, clients, method, options)
    if not isinstance(problem, Federation):
        raise TypeError(f"problem must be a Problem or a Federation, but is {problem!r}")
    if clients is not None:
        raise ValueError(f"clients must be None for a Federation, which has its own, but is {clients!r}")
    return solve_federation(problem, to_first_order(method), options)


def solve_problem(problem: Problem, clients: Any, method: Method, options: RunOptions) -> Result:
    """Solve for clients that hold rows; a method without a step size has its settings chosen."""
    options = options.with_sampling(method)
    output, compute = options.output, options.compute
    if isinstance(method, SQP | OpenMethod):
        return _solve_second_order_first(problem, clients, method, options)
    if problem.is_torch:
        solve_torch: Callable[..., Result] = import_module(TORCH_ENGINE).solve_torch
        return solve_torch(problem, clients, method, options)
    if options.privacy is not None:
        return solve_privately(problem, clients, method, options)
    if isinstance(clients, StreamedData):
        if compute.devices is not None:
            raise ValueError(f"devices must be None for StreamedData, but is {compute.devices!r}")
        if output.lower_bound:
            raise ValueError("lower_bound must be False or None for StreamedData: it needs all rows in memory")
    prepared = prepare_run(problem, clients, (method,), options)
    result = run(prepared, method)
    wanted = output.lower_bound
    if wanted is None:  # if it is cheap
        in_memory = compute.devices is None and isinstance(clients, ClientData)
        is_small = count_parameters(problem.start) <= MAX_PARAMETERS
        wanted = prepared.choice is not None and problem.constraint_surrogate is None and in_memory and is_small
    if not wanted or result.status.code in (StatusCode.DIVERGED, StatusCode.STOPPED):
        return result
    spent = result.history.value_evaluations[-1] + 3 * result.history.gradient_evaluations[-1]
    with suppress(KeyboardInterrupt):  # the run itself is complete
        return with_lower_bound(result, problem, clients, budget_rows=max(1, int(spent) // 8))
    return result


def _solve_second_order_first(problem: Problem, clients: Any, method: SQP | OpenMethod, options: RunOptions) -> Result:
    """Run ``SQP``, and for an ``OpenMethod`` a first-order method if it must; return the better result.

    The time limit is that of both runs together.
    """
    attempt = attempt_second_order(problem, clients, method, options)
    second = attempt.result
    spent = 0.0 if second is None else second.seconds
    left = None if options.seconds is None else options.seconds - spent
    if second is not None and (attempt.reason is None or (left is not None and left <= 0)):
        result = second
    else:
        checkpoints = options.checkpoints
        if second is not None and checkpoints is not None:
            checkpoints = replace(checkpoints, folder=Path(checkpoints.folder) / "first-order")
        options = replace(options, seconds=left, checkpoints=checkpoints)
        first = solve_problem(problem, clients, to_first_order(method), options)
        settings = {"method": f"{type(first.method).__name__}, because {attempt.reason}"}
        result = replace(first, seconds=spent + first.seconds, auto_settings=settings | first.auto_settings)
        if second is not None:
            result = better(result, replace(second, seconds=result.seconds, auto_settings=settings))
    if attempt.oracle is not None:
        attempt.oracle.load_params(result.params)
    return result


def solve_federation(federation: Federation, method: Method, options: RunOptions) -> Result:
    """Solve for clients that are an oracle."""
    if isinstance(method, SQP):
        raise TypeError(
            f"problem must be a Problem with clients that hold rows for SQP, but is a Federation; {INSTEAD}"
        )
    changed = changed_options(options.sampling or Sampling(), "memory") + changed_options(options.compute)
    changed += changed_options(options.output, "iterate", "average_last")
    given = {"held_out": options.logging.held_out, "privacy": options.privacy}
    changed += [name for name, value in given.items() if value is not None]
    if changed:
        raise ValueError(f"{changed[0]} must keep its default for a Federation: its oracle decides that")
    prepared = prepare_federation(federation, (method,), options)
    return run(prepared, method)
