"""solve(): a problem, clients and a rule in, a result out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace as changed
from importlib import import_module
from typing import Any, cast

import numpy as np

from softswitch.certification.client_optimum import make_regret_task
from softswitch.certification.optimality import with_lower_bound
from softswitch.data.client_data import ClientData
from softswitch.data.streamed_data import StreamedData
from softswitch.engine.auto_tuning import size_of
from softswitch.engine.defaults import completed, completed_for
from softswitch.engine.loop import run
from softswitch.engine.private import solve_privately
from softswitch.engine.request import Request, WarmStart, request, request_of
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.oracles.federation import BatchSize, ClientSettings, Federation, ValueBatchSize
from softswitch.oracles.regret import Regret, uses_regret
from softswitch.oracles.sharding import Devices
from softswitch.privacy.checks import batches_given, check_private, refuse_looks
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.choices import ENGINES
from softswitch.problem.problem import Problem
from softswitch.results.callbacks import Callback, ProgressBar, check_callbacks
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.diagnostic import DiagnosticCode
from softswitch.results.infeasibility import minimise_constraint, never_feasible
from softswitch.results.result import Result
from softswitch.results.status import StatusCode
from softswitch.support import checks
from softswitch.support import distributed as processes

ROUNDS_OVER_FLOWER = 300
"""Rounds of a run that chooses for itself over Flower, where each is dear, unless told otherwise."""
FLOWER_ENGINE = "softswitch.flower.simulation"
"""The module that runs the Flower engines. It lies above this package and is imported on first use."""
NEAR = 2e-3
"""A gap of this share of F is told as it is, and not made smaller."""
MOST_PARAMETERS = 500
"""A bound from below is looked for in models of so many parameters, unless it is asked for."""


def solve(
    problem: Problem,
    clients: ClientData | StreamedData,
    method: Method,
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    local_steps: int = 1,
    participation: float = 1.0,
    batch_size: BatchSize = "auto",
    value_batch_size: ValueBatchSize = "auto",
    replace: bool | None = None,
    seed: int = 0,
    average_last: float | None = None,
    answer: str = "auto",
    eval_every: int | None = None,
    held_out: ClientData | StreamedData | None = None,
    record_clients: bool = False,
    memory: Memory | str | None = "auto",
    client_batch_size: int | None = None,
    compute_dtype: str | None = None,
    devices: Devices = None,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    warm_start: Result | None = None,
    keep: Collection[str] = ("optimizer", "average"),
    diagnose_infeasible: bool = True,
    lower_bound: bool | None = None,
    progress: bool | None = None,
    engine: str = "compiled",
    privacy: RecordPrivacy | None = None,
    regret: Regret = None,
) -> Result:
    """Minimise the worst client's objective subject to every client's constraint.

    ``SoftmaxSGM(tolerance=0.1)`` is enough: whatever is left out is then chosen, from the problem and by what the
    rounds show. Where the rule has a ``step_size``, whatever else is left out is as in the paper.

    Args:
        problem: objective, constraint, start, perhaps a domain.
        clients: whose data; ``StreamedData`` where it does not fit in memory.
        method: the method and its settings, such as ``SoftmaxSGM(tolerance=0.1)``, or with the paper's settings
            ``SoftmaxSGM(alpha=100, step_size=0.5, tolerance=0.1)``.
        rounds: K. Left out: until nothing more is gained, over Flower 300; with a step size 1000.
        seconds: end after the first rounds that end so late. How many there were is in the result. With a step size the
            same seed gives the same answer for that many ``rounds``; a run that chooses for itself plans its last cycle
            by the rounds it is given, so that one that the clock ended had other plans.
        local_steps: E, gradient steps a client takes in a round.
        participation: r = m/n in (0, 1], the share of clients drawn for each round.
        batch_size: B_g, rows a client draws for a gradient; None: all of its rows. Left out: all where that is cheap;
            with a step size 32.
        value_batch_size: B_ζ, rows it draws for its report; "same": as ``batch_size``, also where the rule has a step
            size and this is left out.
        replace: draw rows with replacement, or without. Left out: with, but a client that has no more rows than a batch
            takes each of them once.
        seed: of all random choices: the same seed gives the same result on the same machine, bit for bit.
        average_last: average over the feasible rounds of this last share of the rounds only; 1 is the paper's average.
            A start far away spoils that one for a long time; 0.5 forgets it.
        answer: which iterate is ``result.params``: "average", of the feasible ones, the paper's; "last"; or "best", the
            feasible one whose reports had the smallest worst objective. "auto": the one of these that is best on all
            training data; with a step size the average.
        eval_every: rounds from one evaluation of F and G on all clients' data to the next; 0: never. By default up to
            20 times in a run, and never so often that it costs more than the training.
        held_out: rows not trained on, evaluated in the same rounds into ``history.held_out``.
        record_clients: keep what every participant reported in every round.
        memory: let the server remember every client's reports: the switch then sees all clients though few take part,
            and the worst are asked again sooner; ``Memory()``. None is the paper's method. "auto": where few take part
            or batches are small; with a step size never.
        client_batch_size: how many clients are computed side by side; by default as many as fit in 256 MiB, on an
            accelerator in an eighth of its memory.
        compute_dtype: what clients compute in: "bfloat16" or "float16", for accelerators that are faster so; None: as
            the parameters are. Parameters, row weights, the server's step and all judging keep their digits.
        devices: divide the clients over these: "all", how many, or some of ``jax.devices()``. Each holds the rows of
            its own clients only. Draws are the same, and results are up to rounding. None: the default device.
        callbacks: each is called with a ``Chunk`` after every chunk of rounds; one that returns anything true ends it.
        checkpoints: keep the run's standing in a folder, and go on from where it stands there; ``Checkpoints(folder)``.
            Ask for more rounds than before, and a finished run goes on to those; one that chose for itself keeps what
            it chose, and goes on with more cycles.
        warm_start: a result to go on from: the run begins at its last iterate instead of the problem's start.
        keep: what else it takes over from there: "optimizer", the server optimiser's state and the rule's memory;
            "average", the feasible iterates so far, which the new ones join. Round numbers begin anew.
        diagnose_infeasible: where no round was feasible, look whether the client that blocks could meet its
            constraint by
            itself, for the diagnosis: by gradients of at most as many rows as the run took, where ten steps on all
            of its rows can be had for that.
        lower_bound: bound the best possible from below, for ``result.gap``, by at most an eighth of the rows that the
            run took. By default where the rule has no step size and the model at most 500 parameters, unless
            ``devices`` are given: it is computed on one. There is none where the constraint has a stand-in, nor of
            ``StreamedData``.
        progress: show a progress bar; by default on a terminal only.
        engine: "compiled": whole stretches of rounds as one program. "grid" and "ray" speak to every client in Flower's
            messages, in this process or under its Ray simulation: slower, for a look at what a deployment will do.
            With ``batch_size=None`` all give the same trajectory; batches are drawn by each client for itself there.
        privacy: keep every single row private: ``RecordPrivacy(epsilon=3)``. All that clients tell is then clipped sums
            with noise, the judging of the answer included, and what it cost is in ``result.privacy``. Nothing else
            looks at rows, so that settings which do are refused, and what is left out is chosen without a look.
        regret: minimise the largest regret, f_i − f_i*, in place of the largest f_i: one client whose data are
            noise does not dominate. True: f_i*, each client's smallest objective, is computed (``client_optimum``);
            or the numbers, in the clients' order or by name. Objectives of the result are then regrets;
            ``result.client_loss`` has f_i. None: f_i itself.

    Returns:
        A ``Result``. Ctrl-C ends the run early and returns what there is, with status "stopped".
    """
    how = ClientSettings(
        local_steps=local_steps,
        participation=participation,
        batch_size=batch_size,
        value_batch_size=value_batch_size,
        replace=replace,
        client_batch_size=client_batch_size,
        compute_dtype=compute_dtype,
    )
    told = {
        "rounds": rounds,
        "seconds": seconds,
        "average_last": average_last,
        "answer": answer,
        "eval_every": eval_every,
        "record_clients": record_clients,
        "memory": memory,
    }
    if rounds is None and engine != "compiled" and isinstance(method, Method) and method.step_size is None:
        told["rounds"] = ROUNDS_OVER_FLOWER
    if privacy is not None:
        check_private(clients, privacy, engine)
        looks: dict[str, Any] = {"held_out": held_out, "warm_start": warm_start, "regret": regret}
        looks |= {"lower_bound": lower_bound, "devices": devices, "compute_dtype": compute_dtype, "seconds": seconds}
        refuse_looks(looks | {"eval_every": eval_every or None, **batches_given(how)})
        if checkpoints is not None:
            checks.expect("checkpoints", checkpoints, Checkpoints)
        checked = checks.seed("seed", seed), check_callbacks(callbacks)
        private_clients = cast(ClientData, clients)
        return solve_privately(problem, private_clients, method, privacy, how, told, *checked, progress, checkpoints)[0]
    task = None
    if uses_regret(regret):
        refuse_regret(clients)
        task = make_regret_task(problem, cast(ClientData, clients), regret)
        problem, clients, held_out = task.problem, task.clients, task.add_optimum(cast(ClientData | None, held_out))
    if isinstance(clients, StreamedData):
        _refuse_beyond_memory(engine, lower_bound, devices)
        lower_bound = False
    begin = WarmStart.after(warm_start, keep)
    (method,), how, settings, choice = completed(problem, clients, (method,), how, told, checkpoints)
    asked = request(
        problem,
        clients,
        (method,),
        how,
        settings,
        held_out=held_out,
        warm_start=begin,
        choice=choice,
        devices=devices if engine == "compiled" else None,
    )
    seed = checks.seed("seed", seed)
    watching = check_callbacks(callbacks)
    if checks.one_of("engine", engine, ENGINES) == "compiled":
        result = _watched(asked, method, seed, watching, checkpoints, progress)
    else:
        only_compiled = {
            "seconds": seconds,
            "held_out": held_out,
            "client_batch_size": client_batch_size,
            "compute_dtype": compute_dtype,
            "devices": devices,
            "warm_start": warm_start,
        }
        for name, given in only_compiled.items():
            if given is not None:
                raise ValueError(f"{name} must be None with engine={engine!r}")
        solve_over_flower = import_module(FLOWER_ENGINE).solve_over_flower
        with ProgressBar(asked.rounds, progress) as bar:
            result = solve_over_flower(
                problem,
                cast(ClientData, clients),
                method,
                engine,
                how,
                asked.settings,
                seed,
                (bar, *watching),
                checkpoints,
                {}
                if checkpoints is None
                else asked.identity(method if choice is None else choice.template(method), seed),
            )
    if task is not None:
        result = changed(result, client_optimum=task.client_optimum)
    if lower_bound is None:
        smooth = problem.constraint_surrogate is None
        lower_bound = (
            choice is not None
            and smooth
            and engine == "compiled"
            and devices is None
            and size_of(problem.start) <= MOST_PARAMETERS
        )
    if lower_bound and result.status.code not in (StatusCode.DIVERGED, StatusCode.STOPPED):
        result = _with_gap(result, problem, cast(ClientData, clients))
    never = result.status.code is StatusCode.NO_FEASIBLE_ROUND and result.status.client is not None
    if never and diagnose_infeasible and result.violating:
        return _with_blocker_alone(result, problem, clients)
    return result


def solve_federation(
    federation: Federation,
    method: Method,
    *,
    rounds: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    average_last: float | None = None,
    answer: str = "auto",
    eval_every: int | None = None,
    record_clients: bool = False,
    memory: Memory | str | None = "auto",
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    warm_start: Result | None = None,
    keep: Collection[str] = ("optimizer", "average"),
    progress: bool | None = None,
) -> Result:
    """As ``solve``, where the clients are given as an oracle: simulated robots, say, instead of rows of data.

    How they draw, how many take part and what a local step is, the oracle knows. The arguments are those of ``solve``.

    Args:
        federation: an oracle, and the parameters to start from.
        method: the method and its settings, such as ``SoftmaxSGM(tolerance=0.1)``.
        rounds: K. Left out: until nothing more is gained; with a step size 1000.
        seconds: end after the first rounds that end so late.
        seed: of all random choices.
        average_last: average over the feasible rounds of this last share of the rounds only, in (0, 1].
        answer: which iterate is ``result.params``: "average", "last", "best", or "auto".
        eval_every: rounds from one evaluation at all clients to the next; 0: never.
        record_clients: keep what every participant reported in every round.
        memory: ``Memory()`` lets the server remember every client's reports; None: it does not; "auto": where few take
            part.
        callbacks: each is called with a ``Chunk`` after every chunk of rounds; one that returns anything true ends it.
        checkpoints: a folder to keep the run's standing in, and to go on from: ``Checkpoints(folder)``.
        warm_start: a result to go on from: the run begins at its last iterate.
        keep: what else it takes over from there: "optimizer", "average".
        progress: show a progress bar; by default on a terminal only.
    """
    told = {
        "rounds": rounds,
        "seconds": seconds,
        "average_last": average_last,
        "answer": answer,
        "eval_every": eval_every,
        "record_clients": record_clients,
        "memory": memory,
    }
    (method,), _, settings, choice = completed_for(federation, (method,), told, checkpoints)
    asked = request_of(federation, (method,), settings, warm_start=WarmStart.after(warm_start, keep), choice=choice)
    seed = checks.seed("seed", seed)
    return _watched(asked, method, seed, check_callbacks(callbacks), checkpoints, progress)


def _watched(
    asked: Request,
    method: Method,
    seed: int,
    callbacks: Sequence[Callback],
    checkpoints: Checkpoints | None,
    progress: bool | None,
) -> Result:
    if checkpoints is not None:
        checks.expect("checkpoints", checkpoints, Checkpoints)
    first = asked.oracle.processes == 1 or processes.is_first()
    with ProgressBar(asked.rounds, progress if first else False) as bar:
        return run(asked, method, seed, (bar, *callbacks), checkpoints)


def _with_gap(result: Result, problem: Problem, clients: ClientData) -> Result:
    """Bound the best possible from below, by at most an eighth of what the run took."""
    spent = result.history.value_evaluations[-1] + 3 * result.history.gradient_evaluations[-1]
    try:
        return with_lower_bound(result, problem, clients, budget_rows=max(1, int(spent) // 8), enough=NEAR)
    except KeyboardInterrupt:  # the run itself is done
        return result


def refuse_regret(clients: Any) -> None:
    """Raise where regrets cannot be had."""
    if isinstance(clients, StreamedData):
        raise ValueError(
            "regret must be None where clients are StreamedData: f_i* is looked for, and kept, beside rows in memory. "
            "Give the rows a column with f_i*, and subtract it in the objective"
        )
    checks.expect("clients", clients, ClientData)


def _refuse_beyond_memory(engine: str, lower_bound: bool | None, devices: Devices) -> None:
    """Raise for what needs all rows in memory."""
    if devices is not None:
        raise ValueError(f"devices must be None where clients are StreamedData, but is {devices!r}")
    if engine != "compiled":
        raise ValueError(f"engine must be 'compiled' where clients are StreamedData, but is {engine!r}")
    if lower_bound:
        raise ValueError(
            "lower_bound must be False or None where clients are StreamedData: it needs all rows in memory"
        )


def _with_blocker_alone(result: Result, problem: Problem, clients: ClientData | StreamedData) -> Result:
    """Look whether the client that blocks could meet its constraint by itself, and put it into the diagnosis."""
    worst = result.client_constraint.max(axis=1)
    if not np.isfinite(worst).any():
        return result
    blocker = int(np.nanargmax(worst))
    spent: Any = result.history.gradient_evaluations[-1]
    by_itself, index = clients, blocker
    if isinstance(clients, StreamedData):
        if int(clients.sizes[blocker]) * clients.row_bytes > clients.buffer_bytes:
            return result
        by_itself, index = clients.of_client(blocker), 0
    try:
        alone = minimise_constraint(problem, cast(ClientData, by_itself), index, result.params, int(spent))
    except KeyboardInterrupt:  # the run itself is done
        return result
    finding = never_feasible(clients.names, worst, result.method.tolerance, blocker, alone)
    told = tuple(finding if found.code == DiagnosticCode.NEVER_FEASIBLE else found for found in result.diagnostics)
    return changed(result, diagnostics=told)
