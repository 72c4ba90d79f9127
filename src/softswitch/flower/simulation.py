"""solve() over Flower: the same problem and clients in Flower's in-process grid, or in its Ray simulation."""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.task_identity import TaskIdentity
from safetensors.numpy import load_file, save_file

from softswitch.data.client_data import ClientData
from softswitch.engine.request import RunSettings
from softswitch.flower.arrays import flatten_params, flatten_traced, initial_arrays, unflatten_params, unflatten_state
from softswitch.flower.client import client_app
from softswitch.flower.exchange import CLIENT_RAISED
from softswitch.flower.jax_client import JaxClient
from softswitch.flower.membership import normalize_name
from softswitch.flower.policy import ClientPolicy
from softswitch.flower.strategy import SwitchingStrategy
from softswitch.methods.automatic import as_method
from softswitch.methods.base import Method
from softswitch.methods.round import start as first_state
from softswitch.oracles.options import Logging, Sampling
from softswitch.problem.domains import Ball, Box, Domain
from softswitch.problem.parameters import Params
from softswitch.problem.pooled import PooledConstraint
from softswitch.problem.problem import Problem
from softswitch.results.callbacks import Callback, ProgressBar, check_callbacks
from softswitch.results.checkpoints import Checkpoints
from softswitch.results.result import Result


class InProcessGrid(Grid):
    """A Grid whose nodes run a ClientApp at once, in the order of the messages.

    Args:
        app: the clients' app.
        nodes: each node's config by its id, such as ``{1: {"partition-id": 0}}``; or how many nodes there are, each
            with ``partition-id`` and ``num-partitions`` as in Flower's simulations.
        run_config: what the clients' contexts hold under that name.
        keys: the nodes' public keys by their ids, as a SuperLink would tell them: OpenSSH or PEM.

    Attributes:
        connected: the ids of the nodes that can be reached; take some out, put them back.
    """

    SERVER = 1
    _runs = itertools.count(1)

    def __init__(
        self,
        app: ClientApp,
        nodes: int | Mapping[int, Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
        keys: Mapping[int, str | bytes] | None = None,
    ) -> None:
        if isinstance(nodes, int):
            nodes = {100 + i: {"partition-id": i, "num-partitions": nodes} for i in range(nodes)}
        self._app = app
        self._run = next(self._runs)
        self._contexts = {
            node: Context(self._run, node, dict(config), RecordDict(), dict(run_config or {}))
            for node, config in nodes.items()
        }
        self.connected = set(nodes)
        self._keys = {node: key.encode() if isinstance(key, str) else key for node, key in (keys or {}).items()}
        self._replies: dict[str, Message] = {}
        self._ids = itertools.count(1)
        # A Message outside of a run of Flower's own has nobody to be from.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self._run, self.SERVER, 1

    def forget(self, node: int) -> None:
        """Lose what a node kept between exchanges, as after a restart.

        Args:
            node: its id.
        """
        self._contexts[node].state = RecordDict()

    def get_node_ids(self) -> Iterable[int]:
        """Those connected."""
        return sorted(self.connected)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Those connected, with their keys."""
        return [NodeInfo(node_id=node, public_key=self._keys.get(node, b"")) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let every node answer its message; what is sent to a node that is gone is never answered."""
        ids = []
        for message in messages:
            message_id = str(next(self._ids))
            message.metadata.__dict__["_message_id"] = message_id
            ids.append(message_id)
            if message.metadata.dst_node_id in self.connected:
                reply = self.deliver(message)
                if reply is not None:
                    self._replies[message_id] = reply
        return ids

    def deliver(self, message: Message) -> Message | None:
        """A node's answer to a message; None for none.

        Args:
            message: to the node that it names.
        """
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception:
            return Message(Error(CLIENT_RAISED, traceback.format_exc()), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers so far, each once."""
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """All answers; there is nothing to wait for."""
        return self.pull_messages(self.push_messages(messages))

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message of this run."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:
        """There is only one."""

    @property
    def run(self) -> Any:
        """There is only one."""
        return self._run


STRATUM = "stratum of the row"
FIRST_ANSWERS = 600.0
"""Seconds that Ray may take to start, and to let all clients introduce themselves."""


def solve_over_flower(
    problem: Problem,
    clients: ClientData,
    method: Method,
    engine: str,
    sampling: Sampling,
    settings: RunSettings,
    seed: int,
    logging: Logging,
    checkpoints: Checkpoints | None,
    identity: Mapping[str, str],
) -> Result:
    """As ``solve``, each client on its own and spoken to in Flower's messages only.

    Args:
        problem: as for ``solve``.
        clients: each becomes a ``JaxClient`` with its own rows.
        method: the method.
        engine: "grid" or "ray".
        sampling: which clients take part, and which rows they use.
        settings: of the run.
        seed: of all random choices.
        logging: as for ``solve``.
        checkpoints: as for ``solve``.
        identity: what a run of the compiled engine depends on, as text.
    """
    with ProgressBar(settings.rounds, logging.progress) as bar:
        callbacks: list[Any] = [bar, *check_callbacks(logging.callbacks)]
        return _solve_over_flower(
            problem, clients, method, engine, sampling, settings, seed, callbacks, checkpoints, identity
        )


def _solve_over_flower(
    problem: Problem,
    clients: ClientData,
    method: Method,
    engine: str,
    sampling: Sampling,
    settings: RunSettings,
    seed: int,
    callbacks: Sequence[Callback],
    checkpoints: Checkpoints | None,
    identity: Mapping[str, str],
) -> Result:
    labels = [normalize_name(str(name)) for name in clients.names]
    pooled = problem.constraint.value if isinstance(problem.constraint, PooledConstraint) else None
    strategy = SwitchingStrategy(
        as_method(method),
        local_steps=sampling.local_steps,
        participation=sampling.participation,
        seed=seed,
        average_last=settings.average_last,
        answer=settings.answer,
        eval_every=settings.eval_every,
        domain=_by_name(problem),
        pooled=pooled,
        callbacks=callbacks,
        checkpoints=checkpoints,
        memory=settings.memory,
        names=labels,
        wait=FIRST_ANSWERS,
    )
    strategy.clients_identity = {f"{name} of the clients": text for name, text in identity.items()}
    first = initial_arrays(problem.start)
    with tempfile.TemporaryDirectory() as folder, _quiet():
        for i, rows in enumerate(_apart(clients)):
            # Each worker reads the rows of its own clients only.
            save_file(rows, Path(folder) / f"{i}.safetensors")
        factory = partial(_stored_client, folder, problem, labels, sampling.batches)
        app = client_app(factory, ClientPolicy.for_simulations())
        if engine == "grid":
            strategy.start(InProcessGrid(app, len(clients)), first, settings.rounds)
        else:
            _simulate(app, len(clients), lambda grid: strategy.start(grid, first, settings.rounds))
    result = strategy.result
    assert result is not None

    def tree(params: Any) -> Any:
        return None if params is None else jax.tree.map(jnp.asarray, unflatten_params(params, problem.start))

    like = jax.eval_shape(
        lambda: first_state(
            problem.start,
            result.method,
            result.client_constraint.shape[1],
            result.state.memory,
            clients=len(result.names),
        )._replace(at_clients=None)
    )
    known: dict[Any, Any] = dict(zip(labels, clients.names, strict=True))
    blocks = known.get(result.status.client, result.status.client)
    return replace(
        result,
        names=clients.names,
        status=replace(result.status, client=blocks),
        params=tree(result.params),
        last=tree(result.last),
        best=tree(result.best),
        state=unflatten_state(result.state, like, flatten_params(problem.start)),
    )


class _ByName:
    """A domain of parameters in their own structure, for a server that knows them by name."""

    def __init__(self, domain: Domain, like: Params) -> None:
        self._domain, self._like = domain, like

    def project(self, params: Params) -> Params:
        """As the domain does."""
        return flatten_traced(self._domain.project(unflatten_params(params, self._like)))


def _by_name(problem: Problem) -> Domain | None:
    if problem.domain is None or isinstance(problem.domain, Ball | Box):
        return problem.domain  # these ask for no structure
    return _ByName(problem.domain, problem.start)


def _stored_client(
    folder: str, problem: Problem, labels: list[str], batches: dict[str, Any], context: Context
) -> JaxClient:
    i = int(context.node_config["partition-id"])
    rows = load_file(Path(folder) / f"{i}.safetensors")
    return JaxClient(problem, rows, name=labels[i], strata=rows.pop(STRATUM), **batches)


def _apart(clients: ClientData) -> Iterator[dict[str, np.ndarray]]:
    """Every client's own rows, and the stratum of each."""
    ends = np.cumsum(clients.sizes)
    for i, (first, end) in enumerate(zip(ends - clients.sizes, ends, strict=True)):
        stratum = np.repeat(np.arange(len(clients.strata)), clients.stratum_sizes[i])
        yield {
            **{key: np.ascontiguousarray(column[first:end]) for key, column in clients.rows.columns.items()},
            STRATUM: stratum,
        }


def _simulate(app: ClientApp, clients: int, main: Any) -> None:
    """Run under Ray, by Flower's own entry point for a Python session."""
    try:
        import ray  # noqa: F401
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise ValueError("engine='ray' needs Ray: pip install 'softswitch[simulation]'") from error
    server, problems = ServerApp(), []

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        try:
            main(grid)
        except BaseException as problem:
            problems.append(problem)
            raise

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called")  # Ray's processes start afresh: nothing is shared
        run_simulation(server, app, clients, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    if problems:
        raise problems[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Flower's line or two a round."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
