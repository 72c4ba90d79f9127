"""solve_torch(): a PyTorch module and clients with data sets in, a result out; in one process, without a network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace as changed
from typing import Any

import jax
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from softswitch.certification.intervals import ErrorLevels, intervals_from_function, perturb_params
from softswitch.certification.lbfgs import find_minimum
from softswitch.certification.multiple_testing import build_certificate
from softswitch.engine.auto_tuning import memory_for
from softswitch.engine.defaults import PAPER_BATCH, PAPER_ROUNDS, ROUNDS_OF_A_FEDERATION
from softswitch.engine.private_torch import solve_torch_privately
from softswitch.engine.request import rounds_between_looks
from softswitch.engine.solve import solve_federation
from softswitch.methods.base import Method
from softswitch.methods.memory import Memory
from softswitch.oracles.batch_sizes import GRADIENT_COST, Batches, choose_batches
from softswitch.oracles.federation import BatchSize, ClientSettings, Federation, ValueBatchSize, count_participants
from softswitch.oracles.regret import Regret, parse_client_optimum, uses_regret
from softswitch.oracles.torch import TorchOracle
from softswitch.oracles.torch_functions import Function, ModuleFunctions, Optimizer, parameters
from softswitch.oracles.torch_rows import TorchRows
from softswitch.privacy.checks import batches_given, refuse_looks
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.domains import Domain
from softswitch.problem.pooled import PooledConstraint
from softswitch.problem.ranges import Range, function_ranges
from softswitch.results.callbacks import Callback, check_callbacks
from softswitch.results.certificate import Certificate, Interval
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.result import Result
from softswitch.support import checks

Rows = Dataset | DataLoader


def solve_torch(
    module: torch.nn.Module,
    objective: Function,
    constraint: Function | PooledConstraint,
    clients: Mapping[Any, Rows],
    method: Method,
    *,
    constraint_surrogate: Function | None = None,
    rounds: int | None = None,
    seconds: float | None = None,
    local_steps: int = 1,
    participation: float = 1.0,
    batch_size: BatchSize = "auto",
    value_batch_size: ValueBatchSize = "auto",
    replace: bool | None = None,
    optimizer: Optimizer | None = None,
    device: str | torch.device | None = None,
    domain: Domain | None = None,
    seed: int = 0,
    average_last: float | None = None,
    answer: str = "auto",
    eval_every: int | None = None,
    held_out: Mapping[Any, Rows] | None = None,
    record_clients: bool = False,
    memory: Memory | str | None = "auto",
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints | None = None,
    warm_start: Result | None = None,
    keep: Collection[str] = ("optimizer", "average"),
    progress: bool | None = None,
    privacy: RecordPrivacy | None = None,
    regret: Regret = None,
) -> Result:
    """Minimise the worst client's objective subject to every client's constraint, with a PyTorch module.

    The rounds are those of ``solve``: the same rules, choices, memory, checkpoints and result. The clients share the
    module, and compute one after the other in this process. When it returns, the module holds the answer and is in
    ``eval`` mode; ``result.params`` has the parameters by their names.

    Values are computed in the module's ``eval`` mode, gradients in its ``train`` mode. Dropout draws anew for every
    client and round, from the seed. Running means of normalisation layers are the mean of those of the clients that
    took steps; wherever parameters are judged, the answer among them, they are found anew from all clients' rows.

    Args:
        module: its parameters that require a gradient are trained, from where they are.
        objective: ``(module, batch) -> scalar``; smaller is better. −inf where a batch has none (no rows of a class).
        constraint: ``(module, batch) -> scalar or vector``; met where it is at most the rule's tolerance. A
            ``PooledConstraint`` of such functions for the criterion "pooled".
        clients: each client's ``Dataset``, by its name; or a ``DataLoader``, whose own batches are then used.
        method: the method and its settings, such as ``SoftmaxSGM(tolerance=0.1)``.
        constraint_surrogate: ``(module, batch) -> scalar or vector``: what is descended on in place of a constraint
            that
            moves in jumps, such as a rate.
        rounds: K. Left out: up to 2000, fewer where nothing more is gained; with a step size 1000.
        seconds: end after the first rounds that end so late.
        local_steps: E, steps a client takes in a round.
        participation: m/n in (0, 1], the share of clients drawn for each round.
        batch_size: rows a client draws for a gradient; None: all of its rows. Left out: all where that is cheap; with a
            step size 32.
        value_batch_size: rows it draws for its report; "same": as ``batch_size``.
        replace: draw rows with replacement, or without. Left out: with, but a client that has no more rows than a batch
            takes each of them once.
        optimizer: for the local steps: ``(parameters, lr=γ) -> optimizer``, such as ``torch.optim.Adam``, made anew for
            every client and round; by default plain gradient steps. The server's optimiser is the rule's.
        device: where to compute, "cuda", say; by default where the module is. The server's part stays on JAX's device.
        domain: what the parameters must lie in, such as ``Ball(10)``; or None.
        seed: of all random choices: the same seed gives the same result on the same machine.
        average_last: average over the feasible rounds of this last share of the rounds only.
        answer: which iterate is the answer: "average", "last", "best", or "auto".
        eval_every: rounds from one evaluation on all clients' rows to the next; 0: never. By default up to 20 times in
            a run, and never so often that it costs more than the training.
        held_out: rows not trained on, by client: evaluated in the same rounds into ``history.held_out``.
        record_clients: keep what every participant reported in every round.
        memory: let the server remember every client's reports; None: not. "auto": where few take part or batches are
            small, corrected where the module has no running means; with a step size never.
        callbacks: each is called with a ``Chunk`` every ten rounds; one that returns anything true ends the run.
        checkpoints: keep the run's standing in a folder, and go on from where it stands there.
        warm_start: a result to go on from.
        keep: what else it takes over from there: "optimizer", "average".
        progress: show a progress bar; by default on a terminal only.
        privacy: keep every single row private, as in ``solve``. Rows' gradients are computed one by one: expect it to
            take as many times longer as a batch has rows. Not for modules with batch normalisation, which mixes rows.
        regret: minimise the largest regret f_i − f_i*, as in ``solve``: True, f_i* is found in the module's ``eval``
            mode; or the numbers, in the clients' order or by name.

    Returns:
        A ``Result``. Ctrl-C ends the run early and returns what there is, with status "stopped".
    """
    checks.expect("method", method, Method)
    if privacy is not None:
        how = ClientSettings(
            local_steps=local_steps,
            participation=participation,
            batch_size=batch_size,
            value_batch_size=value_batch_size,
            replace=replace,
        )
        looks: dict[str, Any] = {"held_out": held_out, "warm_start": warm_start, "seconds": seconds, "regret": regret}
        refuse_looks(looks | {"eval_every": eval_every or None, **batches_given(how)})
        functions, rows = _module_and_rows(
            module, objective, constraint, constraint_surrogate, optimizer, device, clients
        )
        told = {"rounds": rounds, "average_last": average_last, "answer": answer, "memory": memory}
        checked = checks.seed("seed", seed), check_callbacks(callbacks)
        return solve_torch_privately(
            functions, rows, method, privacy, how, told, domain, *checked, progress, checkpoints
        )
    if method.step_size is not None:
        batch_size = PAPER_BATCH if batch_size == "auto" else batch_size
        value_batch_size = "same" if value_batch_size == "auto" else value_batch_size
    federation = torch_federation(
        module,
        objective,
        constraint,
        clients,
        constraint_surrogate=constraint_surrogate,
        local_steps=local_steps,
        participation=participation,
        batch_size=batch_size,
        value_batch_size=value_batch_size,
        replace=replace,
        optimizer=optimizer,
        device=device,
        domain=domain,
        held_out=held_out,
        regret=regret,
    )
    oracle = federation.oracle
    assert isinstance(oracle, TorchOracle)
    if memory == "auto":
        everyone, noisy = oracle.participants == oracle.client_count, oracle.report_batch_size is not None
        again = oracle.can_repeat_reports and method.robust is None
        memory = memory_for(everyone=everyone, noisy=noisy, again=again) if method.step_size is None else None
    result = solve_federation(
        federation,
        method,
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        average_last=average_last,
        answer=answer,
        eval_every=_eval_every(oracle, method, rounds) if eval_every is None else eval_every,
        record_clients=record_clients,
        memory=memory,
        callbacks=callbacks,
        checkpoints=checkpoints,
        warm_start=warm_start,
        keep=keep,
        progress=progress,
    )
    oracle.load_answer(result.params)
    return result if oracle.client_optimum is None else changed(result, client_optimum=oracle.client_optimum)


def torch_federation(
    module: torch.nn.Module,
    objective: Function,
    constraint: Function | PooledConstraint,
    clients: Mapping[Any, Rows],
    *,
    constraint_surrogate: Function | None = None,
    local_steps: int = 1,
    participation: float = 1.0,
    batch_size: BatchSize = "auto",
    value_batch_size: ValueBatchSize = "auto",
    replace: bool | None = None,
    optimizer: Optimizer | None = None,
    device: str | torch.device | None = None,
    domain: Domain | None = None,
    held_out: Mapping[Any, Rows] | None = None,
    regret: Regret = None,
) -> Federation:
    """Clients with PyTorch data sets, for ``solve_federation`` and ``sweep_federation``.

    The arguments are those of ``solve_torch``. The module is worked with; what it holds after a run is not said.

    Args:
        module: its parameters that require a gradient are trained, from where they are.
        objective: ``(module, batch) -> scalar``; smaller is better.
        constraint: ``(module, batch) -> scalar or vector``, or a ``PooledConstraint`` of such functions.
        clients: each client's ``Dataset`` or ``DataLoader``, by its name.
        constraint_surrogate: what is descended on in place of a constraint that moves in jumps.
        local_steps: E, steps a client takes in a round.
        participation: m/n in (0, 1], the share of clients drawn for each round.
        batch_size: rows a client draws for a gradient; None: all of its rows.
        value_batch_size: rows it draws for its report; "same": as ``batch_size``.
        replace: draw rows with replacement, or without.
        optimizer: for the local steps: ``(parameters, lr=γ) -> optimizer``; by default plain gradient steps.
        device: where to compute, "cuda", say; by default where the module is.
        domain: what the parameters must lie in, such as ``Ball(10)``; or None.
        held_out: rows not trained on, by client.
        regret: whether clients tell regrets, as for ``solve_torch``.
    """
    functions, named = _module_and_rows(module, objective, constraint, constraint_surrogate, optimizer, device, clients)
    here, rows = next(iter(functions.trained.values())).device, list(named.values())
    how = ClientSettings(
        local_steps=local_steps,
        participation=participation,
        batch_size=batch_size,
        value_batch_size=value_batch_size,
        replace=replace,
    )
    participants = count_participants(participation, len(rows))
    oracle = TorchOracle(
        functions,
        rows,
        _held_out(held_out, clients, here),
        participants=participants,
        local_steps=local_steps,
        batches=_batches(how, rows, participants, functions),
        replace=replace,
        client_optimum=_client_optimum(regret, functions, named, domain),
    )
    return Federation(oracle, parameters(module), tuple(clients), domain)


def _client_optimum(
    regret: Regret, functions: ModuleFunctions, clients: Mapping[Any, TorchRows], domain: Domain | None
) -> np.ndarray | None:
    """f_i* as they are given, or found from where the module is; None where regrets are not asked for."""
    if not uses_regret(regret):
        return None
    told = parse_client_optimum(regret, tuple(clients))
    if told is not None:
        return np.where(np.isneginf(told), 0.0, told)
    if domain is not None:
        raise ValueError("regret must be numbers where there is a domain: f_i* is looked for without one")
    start = parameters(functions.module)
    ends = np.cumsum([weight.size for weight in start.values()])

    def lowest_of(rows: TorchRows) -> float:
        everything = rows.everything()

        def look(point: np.ndarray) -> tuple[float, np.ndarray]:
            parts = zip(start.items(), np.split(point, ends[:-1]), strict=True)
            functions.load({name: part.reshape(weight.shape) for (name, weight), part in parts})
            value, slopes = functions.objective_slope(everything)
            return value, np.concatenate([slopes[name].ravel() for name in start]).astype(float)

        return find_minimum(look, np.concatenate([weight.ravel() for weight in start.values()]).astype(float))

    found = np.array([lowest_of(rows) for rows in clients.values()])
    functions.load(start)
    if np.isnan(found).any():
        name = list(clients)[int(np.argmax(np.isnan(found)))]
        raise ValueError(f"regret must be numbers: the objective of client {name!r} has no smallest value")
    return np.where(np.isneginf(found), 0.0, found)


def _module_and_rows(
    module: torch.nn.Module,
    objective: Function,
    constraint: Function | PooledConstraint,
    stand_in: Function | None,
    optimizer: Optimizer | None,
    device: str | torch.device | None,
    clients: Mapping[Any, Rows],
) -> tuple[ModuleFunctions, dict[Any, TorchRows]]:
    """The module's functions, and each client's rows where the module is; or raise."""
    if not isinstance(clients, Mapping) or not clients:
        raise ValueError(
            f"clients must be a mapping from names to data sets with at least one entry, but is {clients!r}"
        )
    functions = ModuleFunctions(module, objective, constraint, stand_in, optimizer)
    _refuse_other_precision(functions)
    if device is not None:
        module.to(device)
    here = next(iter(functions.trained.values())).device
    return functions, {name: TorchRows(f"clients[{name!r}]", own, here) for name, own in clients.items()}


def _batches(how: ClientSettings, rows: Sequence[TorchRows], participants: int, functions: ModuleFunctions) -> Batches:
    """How many rows a report and a gradient take; what is left out, by the work of a round of all participants."""
    sizes, loaders = [len(own) for own in rows], [own.loader for own in rows if own.loader is not None]
    if loaders and len(loaders) < len(rows):
        raise ValueError("clients must all be DataLoaders, which have batches of their own, or none of them")
    if loaders:
        largest = max(min(own.batch_size or many, many) for own, many in zip(loaders, sizes, strict=True))
        return Batches(largest, largest)
    weights = participants * sum(weight.numel() for weight in functions.trained.values())
    capped = how.replace is False  # by the smallest client, below
    chosen = choose_batches(how.batch_size, how.value_batch_size, None if capped else how.replace, max(sizes), weights)
    if not capped:
        return chosen
    told = (how.batch_size if how.value_batch_size == "same" else how.value_batch_size, how.batch_size)
    fitting: list[int | None] = []
    for name, given, size in zip(("value_batch_size", "batch_size"), told, chosen, strict=True):
        if size is not None and size > min(sizes):
            if given != "auto":
                raise ValueError(
                    f"{name} = {size} without replacement must be at most {min(sizes)}, the rows of the smallest client"
                )
            size = min(sizes)
        fitting.append(size)
    return Batches(*fitting)


def _held_out(
    held_out: Mapping[Any, Rows] | None, clients: Mapping[Any, Rows], device: torch.device
) -> list[TorchRows | None] | None:
    if held_out is None:
        return None
    strangers = [name for name in held_out if name not in clients]
    if strangers:
        raise ValueError(f"held_out must have names of clients, but has {strangers}")
    return [TorchRows(f"held_out[{name!r}]", held_out[name], device) if name in held_out else None for name in clients]


def _eval_every(oracle: TorchOracle, method: Method, rounds: int | None) -> int:
    """Rounds from one evaluation on all rows to the next."""
    if rounds is None:
        rounds = ROUNDS_OF_A_FEDERATION if method.step_size is None else PAPER_ROUNDS
    everything = oracle.evaluation_row_count
    values, gradients = oracle.cost(everything * oracle.participants / oracle.client_count)
    return rounds_between_looks(rounds, everything, values + GRADIENT_COST * gradients)


def _refuse_other_precision(functions: ModuleFunctions) -> None:
    kinds = {weight.dtype for weight in functions.trained.values()}
    if not kinds <= {torch.float32, torch.float64}:
        raise TypeError(f"module must have parameters of float32 or float64, but has {sorted(map(str, kinds))}")
    if torch.float64 in kinds and jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise ValueError(
            "module has parameters of float64, which the server would round to float32: call "
            "jax.config.update('jax_enable_x64', True) first, or module.float()"
        )


def certify_torch(
    result: Result,
    module: torch.nn.Module,
    objective: Function,
    constraint: Function | PooledConstraint,
    held_out: Mapping[Any, Dataset],
    confidence: float = 0.95,
    *,
    tolerance: float | None = None,
    objective_range: Range | None = None,
    constraint_range: Range | Sequence[Range] | None = None,
) -> Certificate:
    """Bound every client's objective and constraint from rows that were not trained on; see ``certify``.

    Args:
        result: what ``solve_torch`` returned.
        module: the module that holds the answer, as ``solve_torch`` leaves it.
        objective: as it was solved for.
        constraint: likewise.
        held_out: rows that played no part in training, by client. A client of the result without any is "unknown".
        confidence: the probability with which each kind of statement is true of all clients.
        tolerance: what g_i may be at most; by default the result's rule's.
        objective_range: (low, high), between which the objective on a single row lies, or {low, high}, of which it is
            one. Without a range limits are approximate.
        constraint_range: likewise of the constraint, {0, 1} for a rate; one for all constraints, or one each.
    """
    checks.expect("result", result, Result)
    if not held_out:
        raise ValueError(f"held_out must be a mapping from clients to data sets with at least one, but is {held_out!r}")
    functions = ModuleFunctions(module, objective, constraint)
    here = next(iter(functions.trained.values())).device
    rows = {name: TorchRows(f"held_out[{name!r}]", own, here) for name, own in held_out.items()}
    functions.load(result.params)
    ranges = function_ranges(
        objective_range, constraint_range, functions.constraints(next(iter(rows.values())).take(np.arange(1)))
    )
    error = 1 - checks.probability("confidence", confidence)
    aim = result.method.tolerance if tolerance is None else checks.real_number("tolerance", tolerance)
    levels = ErrorLevels(error / len(rows), error, float(aim))
    found: list[tuple[Any, Sequence[Interval] | None]] = [
        (name, module_intervals(functions, result.params, own, levels, ranges)) for name, own in rows.items()
    ]
    functions.load(result.params)
    found += [(name, None) for name in result.names if name not in rows]
    return build_certificate(found, confidence, levels, ranges)


def module_intervals(
    functions: ModuleFunctions,
    params: Mapping[str, Any],
    rows: TorchRows,
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
) -> list[Interval]:
    """One client's intervals of f and then g, from rows held out; the module is left with other parameters.

    Args:
        functions: the module's.
        params: the parameters to judge.
        rows: the rows held out.
        levels: the error probabilities, and the tolerance.
        ranges: of each function on a single row.
    """

    def value(indices: np.ndarray) -> np.ndarray:
        return functions.values(rows.take(indices))

    def elsewhere(attempt: int) -> Callable[[np.ndarray], np.ndarray]:
        functions.load(perturb_params(params, attempt))
        return value

    functions.load(params)
    return intervals_from_function(value, len(rows), levels, ranges, elsewhere)
