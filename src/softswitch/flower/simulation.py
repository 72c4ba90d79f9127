"""solve() over Flower: the same problem and clients in an in-process grid."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from softswitch.data.client_data import ClientData
from softswitch.engine.request import RunOptions
from softswitch.flower.client import ClientPolicy, client_app
from softswitch.flower.jax_client import JaxClient, flatten_params, flatten_traced, initial_arrays, unflatten_params
from softswitch.flower.membership import normalize_name
from softswitch.flower.messages import CLIENT_RAISED
from softswitch.flower.strategy import SwitchingStrategy
from softswitch.methods.automatic import as_method
from softswitch.methods.base import Method
from softswitch.methods.sqp import SQP
from softswitch.oracles.options import Sampling
from softswitch.problem.domains import Ball, Box, Domain
from softswitch.problem.parameters import Params
from softswitch.problem.problem import PooledConstraint, Problem
from softswitch.results.callbacks import ProgressBar, check_callbacks
from softswitch.results.result import Result


class InProcessGrid(Grid):
    """A Grid whose nodes run a ClientApp in this process, in the order of the messages.

    Args:
        app: The clients' app.
        nodes: Each node's config by its id, such as ``{1: {"partition-id": 0}}``; or the number of nodes, each with
            ``partition-id`` and ``num-partitions`` as in Flower's simulations.
        run_config: The ``run_config`` of the clients' contexts.
        keys: The nodes' public keys by their ids (OpenSSH or PEM), as from a SuperLink.

    Attributes:
        connected: The ids of the nodes that are connected; it may be changed.
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
        self._app, self._run = app, next(self._runs)
        self._contexts = {
            node: Context(self._run, node, dict(config), RecordDict(), dict(run_config or {}))
            for node, config in nodes.items()
        }
        self.connected = set(nodes)
        self._keys = {node: key.encode() if isinstance(key, str) else key for node, key in (keys or {}).items()}
        self._replies: dict[str, Message] = {}
        self._ids = itertools.count(1)
        # Outside of a Flower process, messages have no sender unless it is set here.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = self._run, self.SERVER, 1

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes."""
        return sorted(self.connected)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the connected nodes with their keys."""
        return [NodeInfo(node_id=node, public_key=self._keys.get(node, b"")) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Deliver messages and keep the replies; a node that is not connected never replies."""
        ids = []
        for message in messages:
            message_id = message.metadata.__dict__["_message_id"] = str(next(self._ids))
            ids.append(message_id)
            if message.metadata.dst_node_id in self.connected and (reply := self.deliver(message)) is not None:
                self._replies[message_id] = reply
        return ids

    def deliver(self, message: Message) -> Message | None:
        """Return a node's reply to a message; None for no reply.

        Args:
            message: Message to the node.
        """
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception:
            return Message(Error(CLIENT_RAISED, traceback.format_exc()), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to these messages, each once."""
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return all replies."""
        return self.pull_messages(self.push_messages(messages))

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message of this run."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Any) -> None:
        """Do nothing: there is only one run."""

    @property
    def run(self) -> Any:
        """The id of the run."""
        return self._run


def solve_over_flower(
    problem: Problem,
    clients: ClientData,
    method: Method,
    options: RunOptions,
    identity: Mapping[str, str],
) -> Result:
    """Solve a problem as ``solve`` does, with every client as a ``JaxClient`` behind Flower's messages.

    ``options`` has no open ones. ``identity`` is what a run of the compiled engine depends on, as text.
    """
    sampling, output, logging = cast(Sampling, options.sampling), options.output, options.logging
    names = [normalize_name(str(name)) for name in clients.names]
    constraint, domain = problem.constraint, problem.domain
    if not (domain is None or isinstance(domain, Ball | Box)):  # these work with any structure
        domain = _FlatDomain(domain, problem.start)

    batches: dict[str, Any] = {name: getattr(sampling, name) for name in ("batch_size", "value_batch_size", "replace")}

    def factory(context: Context) -> JaxClient:
        i = int(context.node_config["partition-id"])
        end = int(np.sum(clients.sizes[: i + 1]))
        rows = slice(end - int(clients.sizes[i]), end)
        columns = {key: np.ascontiguousarray(column[rows]) for key, column in clients.rows.columns.items()}
        strata = np.repeat(np.arange(len(clients.strata)), clients.stratum_sizes[i])
        return JaxClient(problem, columns, name=names[i], strata=strata, **batches)

    rounds: Any = options.rounds
    with ProgressBar(rounds, logging.progress) as bar:
        strategy = SwitchingStrategy(
            as_method(method),
            local_steps=sampling.local_steps,
            participation=sampling.participation,
            seed=options.seed,
            average_last=output.average_last,
            answer=output.iterate,
            eval_every=logging.eval_every,
            domain=domain,
            convex=problem.convex,
            lower_bound=output.lower_bound is not False,
            pooled=constraint.value if isinstance(constraint, PooledConstraint) else None,
            callbacks=[bar, *check_callbacks(logging.callbacks)],
            checkpoints=options.checkpoints,
            memory=sampling.memory,
            names=names,
            simulation=True,
        )
        strategy.clients_identity = {f"{name} of the clients": text for name, text in identity.items()}
        policy = replace(ClientPolicy.for_simulations(), second_order=isinstance(method, SQP))
        grid = InProcessGrid(client_app(factory, policy), len(clients))
        strategy.start(grid, initial_arrays(problem.start), rounds)
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

    original_names: dict[Any, Any] = dict(zip(names, clients.names, strict=True))
    return replace(
        result,
        names=clients.names,
        status=replace(result.status, client=original_names.get(result.status.client, result.status.client)),
        **{name: unflatten(getattr(result, name)) for name in ("params", "last", "best", "state")},
    )


class _FlatDomain:
    """A domain of structured parameters, for a server that has them as a dict by name."""

    def __init__(self, domain: Domain, like: Params) -> None:
        self._domain, self._like = domain, like

    def project(self, params: Params) -> Params:
        return flatten_traced(self._domain.project(unflatten_params(params, self._like)))
