"""PyTorch modules in ``solve``: a module instead of parameters, and clients with data sets, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as changed
from typing import Any

import torch

from softswitch.certification.torch import functions_and_rows
from softswitch.engine.auto_tuning import FEDERATION_ROUNDS
from softswitch.engine.request import DEFAULT_ROUNDS, RunOptions, choose_eval_every
from softswitch.engine.solve import solve_federation
from softswitch.methods.base import Method
from softswitch.oracles.base import Federation
from softswitch.oracles.batch_sizes import GRADIENT_COST, Batches, choose_batches
from softswitch.oracles.options import Compute, Sampling, TorchData, changed_options
from softswitch.oracles.torch import TorchOracle
from softswitch.oracles.torch_derivatives import TorchDerivatives
from softswitch.oracles.torch_functions import ModuleFunctions, parameters
from softswitch.oracles.torch_rows import TorchRows
from softswitch.problem.problem import Problem
from softswitch.results.result import Result
from softswitch.support import checks


def solve_torch(problem: Problem, clients: TorchData, method: Method, options: RunOptions) -> Result:
    """Solve for a PyTorch module, and load the answer into the module, in ``eval`` mode; as ``solve_problem``.

    Values are computed in ``eval`` mode, gradients in ``train`` mode. Running means of normalisation layers are the
    mean over the clients that took steps; when parameters are evaluated, they are computed from all clients' rows.
    """
    checks.check_instance("clients", clients, TorchData)
    sampling, logging, privacy = options.sampling or Sampling(), options.logging, options.privacy
    if refused := changed_options(options.output, "iterate", "average_last"):
        raise ValueError(f"{refused[0]} must keep its default for PyTorch modules: only JAX clients have it")
    if privacy is not None:
        raise ValueError(f"privacy must be None for PyTorch modules, but is {privacy!r}; use PrivateClient over Flower")
    federation = torch_federation(problem, clients, sampling, logging.held_out, options.compute)
    oracle: Any = federation.oracle
    every = logging.eval_every
    if every is None:
        default = FEDERATION_ROUNDS if method.step_size is None else DEFAULT_ROUNDS
        rows = oracle.evaluation_row_count
        values, gradients = oracle.cost(rows * oracle.participants / oracle.client_count)
        every = choose_eval_every(options.rounds or default, rows, values + GRADIENT_COST * gradients)
    logging, sampling = changed(logging, held_out=None, eval_every=every), Sampling(memory=sampling.memory)
    options = changed(options, sampling=sampling, logging=logging, compute=Compute())
    result = solve_federation(federation, method, options)
    oracle.load_answer(result.params)
    settings = result.auto_settings | {"clients": oracle.path}
    if oracle.memory is not None:
        settings["memory of a client"] = oracle.memory
    return changed(result, auto_settings=settings)


def torch_federation(
    problem: Problem,
    clients: TorchData,
    sampling: Sampling | None = None,
    held_out: Any = None,
    compute: Compute = Compute(),  # noqa: B008 (frozen)
) -> Federation:
    """Return PyTorch clients as a ``Federation``. Its computations change the parameters of the module.

    Args:
        problem: Functions of ``(module, batch)``; its start is the module.
        clients: Data sets by client.
        sampling: Client sampling, local steps and batch sizes. Default: all clients and all rows.
        held_out: Data sets that are not trained on, by client. Default: none.
        compute: Clients that are computed in parallel, compilation and dtype; other options are ignored.
    """
    sampling = sampling or Sampling()
    if refused := changed_options(compute, "client_batch_size", "compile", "dtype"):
        raise ValueError(f"{refused[0]} must keep its default for PyTorch modules: only JAX clients have it")
    functions, named = functions_and_rows(problem, clients)
    rows = list(named.values())
    participants = sampling.participants(len(rows))
    oracle = TorchOracle(
        functions,
        rows,
        _held_out_rows(functions, clients, held_out),
        participants=participants,
        local_steps=sampling.local_steps,
        batches=_batches(sampling, rows, participants, functions),
        replace=sampling.replace,
        client_optimum=clients.client_optimum,
        client_batch_size=compute.client_batch_size,
        dtype=None if compute.dtype is None else getattr(torch, compute.dtype),
        compiles=compute.compile,
    )
    return Federation(oracle, parameters(functions.module), tuple(clients.datasets), problem.domain)


def torch_derivatives(problem: Problem, clients: TorchData, held_out: Any = None) -> TorchDerivatives:
    """Return PyTorch clients as clients that return derivatives; see ``torch_federation``."""
    functions, rows = functions_and_rows(problem, clients)
    return TorchDerivatives(
        functions,
        rows,
        held_out=_held_out_rows(functions, clients, held_out),
        domain=problem.domain,
        convex=problem.convex,
        client_optimum=clients.client_optimum,
    )


def _held_out_rows(functions: ModuleFunctions, clients: TorchData, held_out: Any) -> list[TorchRows | None] | None:
    """Return each client's held-out rows on the device of the module, None for a client without any."""
    if held_out is None:
        return None
    if unknown := [name for name in held_out if name not in clients.datasets]:
        raise ValueError(f"held_out must have names of clients, but has {unknown}")
    device = next(iter(functions.trained.values())).device
    return [
        TorchRows(f"held_out[{name!r}]", held_out[name], device) if name in held_out else None
        for name in clients.datasets
    ]


def _batches(sampling: Sampling, rows: Sequence[TorchRows], participants: int, functions: ModuleFunctions) -> Batches:
    """Return the batch sizes of reports and updates; "auto" is chosen by the number of parameters and participants."""
    sizes, loaders = [len(one) for one in rows], [one.loader for one in rows if one.loader is not None]
    if loaders:
        if len(loaders) < len(rows):
            raise ValueError("clients must all be DataLoaders, which determine their batches, or none of them")
        largest = max(min(loader.batch_size or size, size) for loader, size in zip(loaders, sizes, strict=True))
        return Batches(largest, largest)
    weights = participants * sum(weight.numel() for weight in functions.trained.values())
    given = sampling.batch_size, sampling.value_batch_size
    if sampling.replace is not False:
        return choose_batches(*given, sampling.replace, max(sizes), weights)
    chosen, smallest = choose_batches(*given, None, max(sizes), weights), min(sizes)
    report = given[0] if given[1] == "same" else given[1]
    for name, value, size in zip(("value_batch_size", "batch_size"), (report, given[0]), chosen, strict=True):
        if size is not None and size > smallest and value != "auto":
            limit = f"must be at most {smallest}, the rows of the smallest client"
            raise ValueError(f"{name} = {size} without replacement {limit}")
    return Batches(*(size if size is None else min(size, smallest) for size in chosen))
