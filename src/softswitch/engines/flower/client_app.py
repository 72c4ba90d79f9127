"""client_app(): a Flower ClientApp of anything that can report and update."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp

from softswitch.engines.flower import wire
from softswitch.engines.flower.local import LocalOracle, Refused, Task
from softswitch.engines.flower.members.client_policy import ClientPolicy
from softswitch.engines.flower.members.introduction import other_protocol, own_version
from softswitch.guarantees.unseen_rows.intervals import ErrorLevels
from softswitch.method.messages import LocalLoss
from softswitch.problem.ranges import Range
from softswitch.results.certificate import Interval, Method

Factory = Callable[[Context], LocalOracle]
Handler = Callable[[LocalOracle, Message, Context], Message]
_MADE: dict[tuple[int, int], LocalOracle] = {}
"""The present run's clients in this process, by run and node; Ray sends the app anew with every message."""


def client_app(factory: Factory, policy: ClientPolicy | None = None) -> ClientApp:
    """A ClientApp whose client is what ``factory`` makes.

    Args:
        factory: from Flower's context (``context.node_config`` tells which client this is) to a ``JaxClient``, a
            ``TorchClient``, a ``NumpyClient`` or anything else with the methods of ``LocalOracle``. It is called once
            for each client of a process and run: in a deployment that is once a message, in simulations once.
        policy: what the client takes part in, whatever the server asks for: which runs, with how many rows at least,
            in how many rounds at most.

    A client that raises ``Refused`` is left out of the round; one that raises anything else is lost in it.
    """
    app = ClientApp()

    def oracle(context: Context) -> LocalOracle:
        which = (context.run_id, context.node_id)
        if which not in _MADE:
            for other in [kept for kept in _MADE if kept[0] != context.run_id]:
                del _MADE[other]  # of a run that is over: their rows need not stay in memory
            client = factory(context)
            if not isinstance(client, LocalOracle):
                raise TypeError(f"factory must return a client with the methods of LocalOracle, but made {client!r}")
            _MADE[which] = client
        return _MADE[which]

    def answering(handler: Handler) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            try:
                client = oracle(context)
                if policy is not None:
                    policy.admit(client, message.metadata.message_type, context)
                return handler(client, message, context)
            except Refused as refused:
                return wire.refusal(message, str(refused))

        return answer

    app.query("hello")(answering(_hello))
    app.query("report")(answering(_report))
    app.train("update")(answering(_update))
    app.evaluate("judge")(answering(_judge))
    app.evaluate("certify")(answering(_certify))
    return app


def _hello(client: LocalOracle, message: Message, context: Context) -> Message:
    """Who this is, to a server that speaks the same protocol."""
    said = message.content.get(wire.SETTINGS)
    if (why := other_protocol(said if isinstance(said, ConfigRecord) else None, "server")) is not None:
        raise Refused(why)
    about: dict[str, Any] = {
        **own_version(),
        "name": str(client.name),
        "rows": int(client.rows),
        "held_out_rows": int(client.held_out_rows),
        "value_rows": int(client.value_rows),
        "gradient_rows": int(client.gradient_rows),
        "constraints": int(client.constraints),
        "statistics": int(getattr(client, "statistics", 0)),
        "stands_in": bool(getattr(client, "stands_in", False)),
    }
    return wire.answer(message, **{wire.ABOUT: ConfigRecord(about)})


def _report(client: LocalOracle, message: Message, context: Context) -> Message:
    """First exchange: two numbers at w_k. The parameters are kept for the second."""
    params, settings = message.content[wire.PARAMS], message.content[wire.SETTINGS]
    assert isinstance(params, ArrayRecord)
    assert isinstance(settings, ConfigRecord)
    values = client.report(wire.from_record(params), _task(settings))
    context.state[wire.PARAMS] = params
    context.state[wire.SETTINGS] = settings
    return wire.answer(message, **{wire.VALUES: wire.values_record(values)})


def _update(client: LocalOracle, message: Message, context: Context) -> Message:
    """Second exchange: a direction, from the parameters that were kept or that come again."""
    decision = message.content[wire.DECISION]
    assert isinstance(decision, ConfigRecord)
    again = wire.PARAMS in message.content
    params, settings = (
        (message.content if again else context.state).get(name) for name in (wire.PARAMS, wire.SETTINGS)
    )
    if not isinstance(params, ArrayRecord) or not isinstance(settings, ConfigRecord):
        raise Refused("its parameters are gone: it was started again between the two exchanges")
    task = _task(settings)
    if str(task.round) != message.metadata.group_id:
        raise Refused(f"it holds the parameters of round {task.round}, but is asked about {message.metadata.group_id}")
    direction = client.update(wire.from_record(params), task, _local_loss(decision, client.constraints))
    limit = settings.get("clip_norm")
    if isinstance(limit, float):
        direction = clipped(direction, limit)
    return wire.answer(message, **{wire.DIRECTION: wire.to_record(direction)})


def _judge(client: LocalOracle, message: Message, context: Context) -> Message:
    params = message.content[wire.PARAMS]
    assert isinstance(params, ArrayRecord)
    return wire.answer(message, **{wire.VALUES: wire.values_record(client.judge(wire.from_record(params)))})


def _certify(client: LocalOracle, message: Message, context: Context) -> Message:
    params, settings = message.content[wire.PARAMS], message.content[wire.SETTINGS]
    assert isinstance(params, ArrayRecord)
    assert isinstance(settings, ConfigRecord)
    if not client.held_out_rows:
        raise Refused("it holds no rows out")
    error = wire.numbers(settings, "error")[0]
    told: dict[str, Any] = {}
    if "alone" in settings and "levels" in inspect.signature(client.certify).parameters:
        told["levels"] = ErrorLevels(error, *(wire.numbers(settings, name)[0] for name in ("alone", "tolerance")))
    intervals = client.certify(wire.from_record(params), error, _ranges(settings), **told)
    return wire.answer(message, **{wire.INTERVALS: intervals_record(intervals)})


def _task(settings: ConfigRecord) -> Task:
    told: Any = settings
    return Task(told["round"], told["seed"], told["local_steps"], told["step_size"], told["switches"])


def _local_loss(decision: ConfigRecord, constraints: int) -> LocalLoss:
    """What to minimise. A single bit says it all where a switching rule has one constraint a client."""
    told: Any = decision
    if "feasible" in told:
        feasible = bool(told["feasible"])
        mix = [0.0] * constraints if feasible else [float(b) for b in told.get("constraint", [1.0])]
        return LocalLoss(float(feasible), np.asarray(mix), 0.0, 0.0)  # type: ignore[arg-type]
    mix = [float(b) for b in told["constraint"]]
    return LocalLoss(told["objective"], np.asarray(mix), told["penalty"], told["tolerance"])  # type: ignore[arg-type]


def decision_record(loss: LocalLoss, switches: bool, feasible: bool) -> ConfigRecord:
    """What a client is told in the second exchange; ``loss.constraint`` is its row of the mix."""
    mix = [float(b) for b in loss.constraint]
    if not switches:
        told: dict[str, Any] = {
            "objective": float(loss.objective),
            "constraint": mix,
            "penalty": float(loss.penalty),
            "tolerance": float(loss.tolerance),
        }
        return ConfigRecord(told)
    if feasible or len(mix) == 1:
        return ConfigRecord({"feasible": feasible})
    return ConfigRecord({"feasible": feasible, "constraint": mix})


def clipped(direction: wire.Arrays, limit: float) -> wire.Arrays:
    """A direction no longer than ``limit``, over all of its arrays."""
    norm = math.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in direction.values()))
    if norm <= limit:
        return direction
    return {name: (part * (limit / norm)).astype(part.dtype) for name, part in direction.items()}


def intervals_record(intervals: Sequence[Interval]) -> MetricRecord:
    """Intervals, to be sent."""
    rows = [asdict(interval) for interval in intervals]
    kinds: dict[str, Callable[[Any], int | float]] = {"rows": int, "approximate": int, "method": list(Method).index}
    return MetricRecord({name: [kinds.get(name, float)(row[name]) for row in rows] for name in rows[0]})


def _ranges(settings: ConfigRecord) -> list[Range | None]:
    """The ranges of f and g, where they are known: two lists of numbers, NaN for none."""
    low, high = wire.numbers(settings, "low"), wire.numbers(settings, "high")
    two = wire.numbers(settings, "two_values") if "two_values" in settings else [0.0] * len(low)
    return [
        None if math.isnan(ends[0]) else frozenset(ends[:2]) if ends[2] else ends[:2]
        for ends in zip(low, high, two, strict=True)
    ]
