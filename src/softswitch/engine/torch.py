"""The PyTorch engine: a module in place of parameters, and clients with data sets, in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from typing import Any

import torch

from softswitch.certification.torch import functions_and_rows
from softswitch.engine.auto_tuning import memory_for
from softswitch.engine.defaults import DEFAULT_ROUNDS, FEDERATION_ROUNDS
from softswitch.engine.private_torch import solve_torch_privately
from softswitch.engine.request import RunSettings, WarmStart, rounds_between_looks
from softswitch.engine.solve import solve_federation
from softswitch.methods.base import Method
from softswitch.oracles.batch_sizes import GRADIENT_COST, Batches, choose_batches
from softswitch.oracles.federation import Federation
from softswitch.oracles.options import Compute, Logging, Output, Sampling, TorchData, changed_options
from softswitch.oracles.torch import TorchOracle
from softswitch.oracles.torch_functions import ModuleFunctions, TorchRows, parameters
from softswitch.privacy.checks import refuse_uncounted
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.problem import Problem
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.result import Result
from softswitch.support import checks


def solve_torch(
    problem: Problem,
    clients: TorchData,
    method: Method,
    settings: RunSettings,
    seed: int,
    sampling: Sampling,
    *,
    output: Output,
    compute: Compute,
    logging: Logging,
    checkpoints: Checkpoints | None = None,
    warm_start: WarmStart | None = None,
    privacy: RecordPrivacy | None = None,
) -> Result:
    """Solve for a PyTorch module; when it returns, the module holds the answer and is in ``eval`` mode.

    Values are computed in ``eval`` mode, gradients in ``train`` mode. Running means of normalisation layers are the
    mean over the clients that took steps; when parameters are evaluated, they are computed from all clients' rows.
    """
    checks.check_instance("clients", clients, TorchData)
    refused = changed_options(compute) + changed_options(output, "iterate", "average_last", "diagnose_infeasible")
    if refused:
        raise ValueError(f"{refused[0]} must keep its default for PyTorch modules: only JAX clients have it")
    if privacy is not None:
        refuse_uncounted(problem, settings, sampling, output, compute, logging, warm_start)
        functions, rows = functions_and_rows(problem, clients)
        return solve_torch_privately(
            functions, rows, method, privacy, sampling, settings, problem.domain, seed, logging, checkpoints
        )
    federation = torch_federation(problem, clients, sampling, logging.held_out)
    oracle = federation.oracle
    assert isinstance(oracle, TorchOracle)
    if settings.memory == "auto":
        memory = None
        if method.step_size is None:
            everyone, noisy = oracle.participants == oracle.client_count, oracle.report_batch_size is not None
            memory = memory_for(
                everyone=everyone, noisy=noisy, again=oracle.can_repeat_reports and method.robust is None
            )
        settings = changed(settings, memory=memory)
    if settings.eval_every is None:
        settings = changed(settings, eval_every=_eval_every(oracle, method, settings.rounds))
    logging = changed(logging, held_out=None)
    result = solve_federation(
        federation,
        method,
        settings,
        seed,
        output=output,
        compute=compute,
        logging=logging,
        checkpoints=checkpoints,
        warm_start=warm_start,
    )
    oracle.load_answer(result.params)
    return changed(result, client_optimum=oracle.client_optimum)


def torch_federation(
    problem: Problem, clients: TorchData, sampling: Sampling | None = None, held_out: Any = None
) -> Federation:
    """Return PyTorch clients as a ``Federation``; the module is used for computations, and is left in any state.

    Args:
        problem: Functions of ``(module, batch)``; its start is the module.
        clients: Data sets by client.
        sampling: Which clients take part in a round, and which rows they use. Default: all.
        held_out: Data sets that are not trained on, by client.
    """
    sampling = sampling or Sampling()
    functions, named = functions_and_rows(problem, clients)
    rows, device = list(named.values()), next(iter(functions.trained.values())).device
    participants = sampling.participants(len(rows))
    oracle = TorchOracle(
        functions,
        rows,
        _held_out(held_out, clients.datasets, device),
        participants=participants,
        local_steps=sampling.local_steps,
        batches=_batches(sampling, rows, participants, functions),
        replace=sampling.replace,
        client_optimum=clients.client_optimum,
    )
    return Federation(oracle, parameters(functions.module), tuple(clients.datasets), problem.domain)


def _batches(sampling: Sampling, rows: Sequence[TorchRows], participants: int, functions: ModuleFunctions) -> Batches:
    """How many rows a report and a gradient take; what is left out, by the work of a round of all participants."""
    sizes, loaders = [len(own) for own in rows], [own.loader for own in rows if own.loader is not None]
    if loaders and len(loaders) < len(rows):
        raise ValueError("clients must all be DataLoaders, which have batches of their own, or none of them")
    if loaders:
        largest = max(min(own.batch_size or many, many) for own, many in zip(loaders, sizes, strict=True))
        return Batches(largest, largest)
    weights = participants * sum(weight.numel() for weight in functions.trained.values())
    capped = sampling.replace is False  # by the smallest client, below
    chosen = choose_batches(
        sampling.batch_size, sampling.value_batch_size, None if capped else sampling.replace, max(sizes), weights
    )
    if not capped:
        return chosen
    told = (
        sampling.batch_size if sampling.value_batch_size == "same" else sampling.value_batch_size,
        sampling.batch_size,
    )
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
    held_out: Mapping[Any, Any] | None, clients: Mapping[Any, Any], device: torch.device
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
        rounds = FEDERATION_ROUNDS if method.step_size is None else DEFAULT_ROUNDS
    everything = oracle.evaluation_row_count
    values, gradients = oracle.cost(everything * oracle.participants / oracle.client_count)
    return rounds_between_looks(rounds, everything, values + GRADIENT_COST * gradients)
