"""A Flower grid in this process, to test clients and servers without a network."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from softswitch.flower.messages import CLIENT_RAISED


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
