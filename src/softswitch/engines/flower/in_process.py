"""Flower's two apps in one process: no SuperLink, no Ray, no sockets. For tests, and to try a deployment's code."""

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

from softswitch.engines.flower.exchange import CLIENT_RAISED


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
