"""Certificates and client optima of PyTorch modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch.utils.data import Dataset

from softswitch.certification.certify import ClientIntervals, build_certificate
from softswitch.certification.client_optimum import find_minimum
from softswitch.certification.intervals import ErrorLevels, Ranges, intervals_from_function
from softswitch.oracles.options import TorchData
from softswitch.oracles.torch_functions import ModuleFunctions, parameters
from softswitch.oracles.torch_rows import TorchRows
from softswitch.problem.problem import Problem
from softswitch.problem.ranges import function_ranges
from softswitch.results.certificate import Certificate, Interval
from softswitch.support import checks


def certify_torch(
    params: Mapping[str, Any],
    names: Sequence[Any],
    problem: Problem,
    held_out: Mapping[Any, Dataset],
    confidence: float,
    tolerance: float,
) -> Certificate:
    """Certify parameters of a PyTorch module, by name, with a data set by client in ``held_out``; see ``certify``.

    ``names`` are the trained clients, empty if they are unknown.
    """
    datasets: Mapping[Any, Dataset] = getattr(held_out, "datasets", held_out)
    if not datasets:
        raise ValueError(f"held_out must have at least one data set by client, but is {held_out!r}")
    unknown = [name for name in datasets if name not in names]
    if names and unknown:
        raise ValueError(f"held_out must have names of trained clients, but has {unknown}; evaluate those separately")
    functions = ModuleFunctions(problem.start, problem.objective, problem.constraint)
    device = next(iter(functions.trained.values())).device
    rows = {name: TorchRows(f"held_out[{name!r}]", one, device) for name, one in datasets.items()}
    levels = ErrorLevels.of(confidence, len(rows), tolerance)
    checks.check_instance("params", params, Mapping)
    before = parameters(functions.module)
    functions.load(params)
    try:
        constraints = functions.constraints(next(iter(rows.values())).take(np.arange(1)))
        ranges = function_ranges(problem.objective_range, problem.constraint_range, constraints)
        clients: list[ClientIntervals] = [
            (name, module_intervals(functions, params, one, levels, ranges)) for name, one in rows.items()
        ]
    finally:
        functions.load(before)
    return build_certificate(clients, confidence, levels, ranges, names)


def module_intervals(
    functions: ModuleFunctions, params: Mapping[str, Any], rows: TorchRows, levels: ErrorLevels, ranges: Ranges
) -> list[Interval]:
    """Return one client's intervals of f and then each g on held-out rows. It changes the parameters of the module."""
    loaded: Any = None

    def evaluate(point: Mapping[str, Any], indices: np.ndarray) -> np.ndarray:
        nonlocal loaded
        if loaded is not point:
            functions.load(point)
            loaded = point
        return functions.values(rows.take(indices))

    return intervals_from_function(evaluate, params, len(rows), levels, ranges)


def torch_client_optima(problem: Problem, clients: TorchData) -> np.ndarray:
    """Return f_i*, the smallest objective of each client alone, shape (n,), by L-BFGS from the module's parameters."""
    if problem.domain is not None:
        raise ValueError("optimum must be numbers for a problem with a domain: f_i* is searched for without one")
    functions, named = functions_and_rows(problem, clients)
    start = parameters(functions.module)
    ends = np.cumsum([weight.size for weight in start.values()])

    def smallest_objective(rows: TorchRows) -> float:
        everything = rows.all_rows()

        def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
            parts = zip(start.items(), np.split(point, ends[:-1]), strict=True)
            functions.load({name: part.reshape(weight.shape) for (name, weight), part in parts})
            value, slopes = functions.objective_slope(everything)
            return value, np.concatenate([slopes[name].ravel() for name in start]).astype(float)

        return find_minimum(evaluate, np.concatenate([weight.ravel() for weight in start.values()]).astype(float))[0]

    optima = np.array([smallest_objective(rows) for rows in named.values()])
    functions.load(start)
    if np.isnan(optima).any():
        name = list(named)[int(np.argmax(np.isnan(optima)))]
        raise ValueError(f"optimum must be numbers: the objective of client {name!r} has no smallest value")
    return optima


def functions_and_rows(problem: Problem, clients: TorchData) -> tuple[ModuleFunctions, dict[Any, TorchRows]]:
    """Return the functions of a problem with a module, and each client's rows, by name, on the device of the module."""
    module: Any = problem.start
    functions = ModuleFunctions(
        module, problem.objective, problem.constraint, problem.constraint_surrogate, clients.optimizer
    )
    dtypes = {weight.dtype for weight in functions.trained.values()}
    if not dtypes <= {torch.float32, torch.float64}:
        raise TypeError(f"module must have parameters of float32 or float64, but has {sorted(map(str, dtypes))}")
    if torch.float64 in dtypes and jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise ValueError(
            "module has parameters of float64, which the server would round to float32: call "
            "jax.config.update('jax_enable_x64', True) first, or module.float()"
        )
    if clients.device is not None:
        module.to(clients.device)
    device = next(iter(functions.trained.values())).device
    return functions, {name: TorchRows(f"clients[{name!r}]", rows, device) for name, rows in clients.datasets.items()}
