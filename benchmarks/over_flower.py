"""``solve`` over Flower in one process: every client of a data set is a ``JaxClient`` behind Flower's messages.

Tests and benchmarks compare the compiled engine with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import softswitch as ss
from softswitch import flower as fl
from softswitch.engine.request import RunOptions, prepare_run, resolve_method
from softswitch.flower.jax_client import JaxClient, flatten_params, flatten_traced, unflatten_params
from softswitch.flower.membership import normalize_name
from softswitch.methods.automatic import as_method

ROUNDS = 300  # of an automatic run
EXCHANGES = 100  # of ``SQP``


def solve_over_flower(
    problem: ss.Problem,
    clients: ss.ClientData,
    method: Any,
    *,
    rounds: int | None = None,
    seed: int = 0,
    sampling: ss.Sampling | None = None,
    output: ss.Output | None = None,
    logging: ss.Logging | None = None,
    checkpoints: ss.Checkpoints | None = None,
) -> ss.Result:
    """Solve a problem as ``solve`` does, with clients behind Flower's messages."""
    method = resolve_method(method)
    is_second_order, output, logging = isinstance(method, ss.SQP), output or ss.Output(), logging or ss.Logging()
    if is_second_order:
        output, sampling = replace(output, iterate="last"), ss.Sampling(memory=None)
        logging = replace(logging, eval_every=0)
    rounds = rounds or (EXCHANGES if is_second_order else ROUNDS if method.step_size is None else 1000)
    options = RunOptions(
        rounds=rounds, seed=seed, sampling=sampling, output=output, logging=logging, checkpoints=checkpoints
    ).with_sampling(method)
    if not is_second_order:
        options = prepare_run(problem, clients, (method,), options).options
    chosen: Any = options.sampling
    names = [normalize_name(str(name)) for name in clients.names]
    constraint, domain = problem.constraint, problem.domain
    if not (domain is None or isinstance(domain, ss.Ball | ss.Box)):  # these work with any structure
        domain = _FlatDomain(domain, problem.start)
    batches: dict[str, Any] = {name: getattr(chosen, name) for name in ("batch_size", "value_batch_size", "replace")}

    def factory(context: Any) -> JaxClient:
        i = int(context.node_config["partition-id"])
        end = int(np.sum(clients.sizes[: i + 1]))
        rows = slice(end - int(clients.sizes[i]), end)
        columns = {key: np.ascontiguousarray(column[rows]) for key, column in clients.rows.columns.items()}
        strata = np.repeat(np.arange(len(clients.strata)), clients.stratum_sizes[i])
        return JaxClient(problem, columns, name=names[i], strata=strata, **batches)

    strategy = fl.SwitchingStrategy(
        as_method(method),
        local_steps=chosen.local_steps,
        participation=chosen.participation,
        seed=seed,
        average_last=output.average_last,
        answer=output.iterate,
        eval_every=options.logging.eval_every,
        domain=domain,
        convex=problem.convex,
        lower_bound=output.lower_bound is not False,
        pooled=constraint.value if isinstance(constraint, ss.PooledConstraint) else None,
        callbacks=list(logging.callbacks),
        checkpoints=checkpoints,
        memory=chosen.memory,
        names=names,
        simulation=True,
    )
    policy = replace(fl.ClientPolicy.for_simulations(), second_order=is_second_order)
    strategy.start(
        fl.InProcessGrid(fl.client_app(factory, policy), len(clients)), fl.initial_arrays(problem.start), rounds
    )
    result = strategy.result
    assert result is not None
    flat = flatten_params(problem.start)

    def is_flat(node: Any) -> bool:
        return isinstance(node, dict) and set(node) == set(flat)

    def unflatten(tree: Any) -> Any:
        """Return a tree in which parameters by name have their own structure again."""
        structured = jax.tree.map(
            lambda node: unflatten_params(node, problem.start) if is_flat(node) else node, tree, is_leaf=is_flat
        )
        return jax.tree.map(jnp.asarray, structured)

    originals: dict[Any, Any] = dict(zip(names, clients.names, strict=True))
    return replace(
        result,
        names=clients.names,
        status=replace(result.status, client=originals.get(result.status.client, result.status.client)),
        client_optimum=getattr(clients, "client_optimum", None),
        **{name: unflatten(getattr(result, name)) for name in ("params", "last", "best", "state")},
    )


class _FlatDomain:
    """A domain of structured parameters, for a server that has them as a dict by name."""

    def __init__(self, domain: Any, like: Any) -> None:
        self._domain, self._like = domain, like

    def project(self, params: Any) -> Any:
        """Return the projection of parameters by name."""
        return flatten_traced(self._domain.project(unflatten_params(params, self._like)))
