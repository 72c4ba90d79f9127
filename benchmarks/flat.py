"""Options one by one, for benchmarks and tests: each function groups them and calls the public one.

Methods with given settings draw batches of 32 rows here unless they are given another batch size.
"""

from __future__ import annotations

from typing import Any

import softswitch as ss
from softswitch.oracles.gradient import make_federation
from softswitch_experiments.options import group_options


def _options(method: Any, options: dict[str, Any]) -> dict[str, Any]:
    automatic = isinstance(method, ss.Automatic) or method is None
    draws = {} if automatic or options.get("privacy") is not None else {"batch_size": 32}
    return group_options(automatic=automatic, **draws | options)


def _regret(options: dict[str, Any]) -> Any:
    """Return the arguments of ``with_regret``, or None."""
    regret = options.pop("regret", None)
    return None if regret is None or regret is False else ((None,) if regret is True else (regret,))


def solve(problem: Any, clients: Any, method: Any = None, **options: Any) -> ss.Result:
    """Call ``softswitch.solve``."""
    if (given := _regret(options)) is not None:
        task = ss.with_regret(problem, clients, *given)
        problem, clients = task.problem, task.clients
        if options.get("held_out") is not None:
            options["held_out"] = task.transform(options["held_out"])
    if options.pop("engine", "compiled") == "grid":
        from benchmarks.over_flower import solve_over_flower

        return solve_over_flower(problem, clients, method, **_options(method, options))
    return ss.solve(problem, clients, method, **_options(method, options))


def solve_federation(federation: Any, method: Any, **options: Any) -> ss.Result:
    """Call ``softswitch.solve`` for a federation."""
    return ss.solve(federation, None, method, **group_options(**options))


def sweep(problem: Any, clients: Any, methods: Any, **options: Any) -> Any:
    """Call ``softswitch.sweep``."""
    every = methods.values() if isinstance(methods, dict) else methods
    automatic = isinstance(methods, dict | list | tuple) and any(isinstance(method, ss.Automatic) for method in every)
    return ss.sweep(problem, clients, methods, **_options(None if automatic else False, options))


def sweep_federation(federation: Any, methods: Any, **options: Any) -> Any:
    """Call ``softswitch.sweep`` for a federation."""
    return ss.sweep(federation, None, methods, **group_options(**options))


def federation_of(problem: Any, clients: Any, **options: Any) -> ss.Federation:
    """Call ``make_federation``."""
    return make_federation(problem, clients, **group_options(**options))


def _torch(module: Any, objective: Any, constraint: Any, clients: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    names = ("constraint_surrogate", "domain", "objective_range", "constraint_range")
    given = {name: options.pop(name) for name in names if name in options}
    problem = ss.Problem(objective, constraint, module, **given)
    data = ss.TorchData(clients, options.pop("optimizer", None), options.pop("device", None))
    if (regret := _regret(options)) is not None:
        data = ss.with_regret(problem, data, *regret).clients
    return problem, data


def solve_torch(
    module: Any, objective: Any, constraint: Any, clients: Any, method: Any = None, **options: Any
) -> ss.Result:
    """Call ``softswitch.solve`` for a PyTorch module."""
    problem, data = _torch(module, objective, constraint, clients, options)
    return ss.solve(problem, data, method, **_options(method, options))


def torch_federation(module: Any, objective: Any, constraint: Any, clients: Any, **options: Any) -> ss.Federation:
    """Return PyTorch clients as a federation."""
    from softswitch.engine.torch import torch_federation as make_torch_federation

    problem, data = _torch(module, objective, constraint, clients, options)
    held_out = options.pop("held_out", None)
    sampling = group_options(automatic=True, **options).get("sampling", ss.Sampling.automatic())
    return make_torch_federation(problem, data, sampling, held_out)


def certify_torch(
    result: Any, module: Any, objective: Any, constraint: Any, held_out: Any, *args: Any, **options: Any
) -> ss.Certificate:
    """Call ``softswitch.certify`` for a PyTorch module."""
    ranges = {name: options.pop(name) for name in ("objective_range", "constraint_range") if name in options}
    return ss.certify(result, ss.Problem(objective, constraint, module, **ranges), held_out, *args, **options)


def solve_certified(problem: Any, split: Any, method: Any = None, **options: Any) -> ss.Certified:
    """Call ``softswitch.solve_certified``."""
    if (given := _regret(options)) is not None:
        problem, split, _ = ss.with_regret(problem, split, *given)
    return ss.solve_certified(problem, split, method, **_options(method, options))


def frontier(problem: Any, split: Any, bounds: Any, method: Any = None, **options: Any) -> Any:
    """Call ``softswitch.frontier``."""
    return ss.frontier(problem, split, bounds, method, **_options(method, options))
