"""client_app(): a Flower ClientApp of anything that can report and update."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp

from softswitch.flower import codec as codes
from softswitch.flower import messages as wire
from softswitch.flower.client_compression import OutdatedParamsError, compress_direction, read_params, settle
from softswitch.flower.local_client import (
    PREVIOUS,
    PREVIOUS_VALUES,
    LocalOracle,
    RefusalError,
    Task,
    find_previous_params,
)
from softswitch.flower.membership import get_version, protocol_mismatch
from softswitch.flower.policy import ClientPolicy
from softswitch.methods.messages import LocalLoss
from softswitch.problem.ranges import Range
from softswitch.results.certificate import Interval, IntervalMethod

if TYPE_CHECKING:  # cryptography is imported where directions are masked
    from softswitch.flower.secure_client import SigningKeys

Factory = Callable[[Context], LocalOracle]
Handler = Callable[[LocalOracle, Message, Context], Message]
MASKED = "masked"
"""In the settings of a round: whether directions are to be masked."""
TERMS = "terms"
"""The record that says how a direction is to be masked."""
MOST_OF_ALL, MOST_STEPS = 2**63 - 1, 10**6
"""No round or seed is larger, and no client takes more steps in a round."""
COUNTED = (wire.REPORT, wire.UPDATE, wire.EVALUATE, wire.CERTIFY)
"""The messages whose answers tell of rows: with each a private client says what it has spent."""
_MADE: dict[tuple[int, int], LocalOracle] = {}
"""The present run's clients in this process, by run and node; Ray sends the app anew with every message."""


def client_app(
    factory: Factory, policy: ClientPolicy | None = None, *, signing_keys: SigningKeys | None = None
) -> ClientApp:
    """A ClientApp whose client is what ``factory`` makes.

    Args:
        factory: from Flower's context (``context.node_config`` tells which client this is) to a ``JaxClient``, a
            ``TorchClient``, a ``NumpyClient`` or anything else with the methods of ``LocalOracle``. It is called once
            for each client of a process and run: in a deployment that is once a message, in simulations once.
        policy: what the client takes part in, whatever the server asks for: which runs, with how many rows at least,
            in how many rounds at most. None: ``ClientPolicy()``, which answers on no class of fewer than ten rows.
        signing_keys: The keys that sign the key exchange of secure aggregation. Default: the exchange is not signed.

    A client that raises ``RefusalError`` is left out of the round; one that raises anything else is lost in it.
    """
    app, own = ClientApp(), ClientPolicy() if policy is None else policy

    def oracle(context: Context) -> LocalOracle:
        which = (context.run_id, context.node_id)
        if which not in _MADE:
            for other in [kept for kept in _MADE if kept[0] != context.run_id]:
                del _MADE[other]  # of a run that is over: their rows need not stay in memory
            client = factory(context)
            if not isinstance(client, LocalOracle):
                raise TypeError(f"factory must return a client with the methods of LocalOracle, but made {client!r}")
            _MADE[which] = own.part_of(client)
        return _MADE[which]

    def answering(handler: Handler) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            try:
                client = oracle(context)
                own.admit(client, message.metadata.message_type, context)
                reply = handler(client, message, context)
                if message.metadata.message_type in COUNTED:
                    _tell_spent(client, reply)
                return reply
            except RefusalError as refused:
                return wire.refuse(message, str(refused))
            except OutdatedParamsError as outdated:
                return wire.refuse(message, str(outdated), **{codes.NEEDS_PARAMS: True})
            except wire.InvalidMessageError as error:
                return wire.refuse(message, f"the server's message cannot be used: {error}")

        return answer

    app.query("register")(answering(_register))
    app.query("report")(answering(partial(_report, signing_keys, own)))
    app.train("update")(answering(partial(_update, signing_keys, own)))
    app.query("unmask")(answering(partial(_unmask, own.min_secure_clients)))
    app.evaluate("values")(answering(_evaluate))
    app.evaluate("certify")(answering(_certify))
    return app


def _tell_spent(client: LocalOracle, reply: Message) -> None:
    """Add what a client that keeps its rows private has spent; how often it answered tells nothing of rows."""
    if (spent := getattr(client, "privacy_report", None)) is not None:
        reply.content[wire.PRIVACY] = ConfigRecord(dict(spent))


def _register(client: LocalOracle, message: Message, context: Context) -> Message:
    """Who this is, to a server that speaks the same protocol."""
    said = message.content.get(wire.SETTINGS)
    if (why := protocol_mismatch(said if isinstance(said, ConfigRecord) else None, "server")) is not None:
        raise RefusalError(why)
    about: dict[str, Any] = {
        **get_version(),
        "name": str(client.name),
        "rows": int(client.rows),
        "held_out_rows": int(client.held_out_rows),
        "value_rows": int(client.value_rows),
        "gradient_rows": int(client.gradient_rows),
        "constraints": int(client.constraints),
        "statistics": int(getattr(client, "statistics", 0)),
        "has_surrogate": bool(getattr(client, "has_surrogate", False)),
        "can_repeat_reports": bool(getattr(client, "can_repeat_reports", False)),
        "excluded_classes": int(getattr(client, "excluded_classes", 0)),
    }
    return wire.reply(message, **{wire.REGISTRATION: ConfigRecord(about)})


def _report(
    signed: SigningKeys | None, own: ClientPolicy, client: LocalOracle, message: Message, context: Context
) -> Message:
    """First exchange: two numbers at w_k, and at w_{k−1} where that is asked for. w_k is kept for the second."""
    settings = wire.get_config(message.content, wire.SETTINGS)
    record, came_by = read_params(message, context)
    params, task = wire.from_record(record), own.drawing(_task(settings))
    before = None
    if PREVIOUS in settings and getattr(client, "can_repeat_reports", False):
        before = find_previous_params(settings[PREVIOUS], params, came_by, message, context)
    settle(settings, context)
    values = client.report(params, task)
    context.state[wire.PARAMS] = record
    context.state[wire.SETTINGS] = settings
    told: dict[str, Any] = {wire.VALUES: wire.encode_values(values)}
    if before is not None:
        told[PREVIOUS_VALUES] = wire.encode_values(values if before is params else client.report(before, task))
    if settings.get(MASKED) is True:
        from softswitch.flower import secure_client, secure_protocol

        told[secure_protocol.ROUND_KEY] = secure_client.create_round_key(
            wire.read_int(settings, "round", MOST_OF_ALL), client.name, context, signed
        )
    return wire.reply(message, **told)


def _update(
    signed: SigningKeys | None, own: ClientPolicy, client: LocalOracle, message: Message, context: Context
) -> Message:
    """Second exchange: a direction, from the parameters that were kept or that come again."""
    if own.min_secure_clients is not None and TERMS not in message.content:
        raise RefusalError("it tells directions only as part of a sum of masked ones (its own policy)")
    decision = wire.get_config(message.content, wire.DECISION)
    again = wire.PARAMS in message.content
    params, settings = (
        (message.content if again else context.state).get(name) for name in (wire.PARAMS, wire.SETTINGS)
    )
    if not isinstance(params, ArrayRecord) or not isinstance(settings, ConfigRecord):
        raise RefusalError("its parameters are gone: it was started again between the two exchanges")
    task = _task(settings)
    if str(task.round) != message.metadata.group_id:
        raise RefusalError(
            f"it holds the parameters of round {task.round}, but is asked about {message.metadata.group_id}"
        )
    direction = client.update(wire.from_record(params), own.drawing(task), _local_loss(decision, client.constraints))
    limit = settings.get("clip_norm")
    if isinstance(limit, float):
        direction = clip_direction(direction, limit)
    if TERMS in message.content:
        from softswitch.flower import secure_client, secure_protocol

        sum_of = secure_protocol.parse_terms(message.content[TERMS])
        short = clip_direction(direction, sum_of.limit)
        parts = secure_client.mask_direction(short, sum_of, client.name, context, own.min_secure_clients or 0, signed)
        return wire.reply(message, **parts)
    if codes.UP in settings:
        sent = compress_direction(direction, settings, decision, context)
        return wire.reply(message, **{wire.DIRECTION: sent})
    return wire.reply(message, **{wire.DIRECTION: wire.to_record(direction)})


def _unmask(min_secure_clients: int | None, client: LocalOracle, message: Message, context: Context) -> Message:
    """Where directions were masked: what takes the masks off their sum."""
    from softswitch.flower import secure_client, secure_protocol

    return wire.reply(
        message, **{secure_protocol.UNMASKING: secure_client.unmask(message, context, min_secure_clients or 0)}
    )


def _evaluate(client: LocalOracle, message: Message, context: Context) -> Message:
    params = wire.from_record(message.content.get(wire.PARAMS))
    return wire.reply(message, **{wire.VALUES: wire.encode_values(client.evaluate(params))})


def _certify(client: LocalOracle, message: Message, context: Context) -> Message:
    settings = wire.get_config(message.content, wire.SETTINGS)
    params = wire.from_record(message.content.get(wire.PARAMS))
    if not client.held_out_rows:
        raise RefusalError("it holds no rows out")
    error = _probability(settings, "error")
    told: dict[str, Any] = {}
    if "marginal" in settings and "levels" in inspect.signature(client.certify).parameters:
        from softswitch.certification.intervals import ErrorLevels  # needs SciPy, and other messages do not

        told["levels"] = ErrorLevels(error, _probability(settings, "marginal"), wire.read_float(settings, "tolerance"))
    intervals = client.certify(params, error, _ranges(settings, client.constraints), **told)
    return wire.reply(message, **{wire.INTERVALS: encode_intervals(intervals)})


def _task(settings: ConfigRecord) -> Task:
    local_steps = wire.read_int(settings, "local_steps", MOST_STEPS)
    if not local_steps:
        raise wire.InvalidMessageError("its local_steps must be at least 1, but is 0")
    return Task(
        wire.read_int(settings, "round", MOST_OF_ALL),
        wire.read_int(settings, "seed", MOST_OF_ALL),
        local_steps,
        wire.read_float(settings, "step_size"),
        wire.read_bool(settings, "switches"),
    )


def _probability(settings: ConfigRecord, name: str) -> float:
    found = wire.read_float(settings, name)
    if not 0 < found < 1:
        raise wire.InvalidMessageError(f"its {name} must be between 0 and 1, but is {found:g}")
    return found


def _local_loss(decision: ConfigRecord, constraints: int) -> LocalLoss:
    """What to minimise. A single bit says it all where a switching rule has one constraint a client."""
    switches = "feasible" in decision
    feasible = switches and wire.read_bool(decision, "feasible")
    if feasible:
        mix = [0.0] * constraints
    elif switches and constraints == 1 and "constraint" not in decision:
        mix = [1.0]
    else:
        mix = wire.read_numbers(decision, "constraint")
    if len(mix) != constraints or not np.isfinite(mix).all():
        raise wire.InvalidMessageError(
            f"its mix of constraints must be {constraints} finite numbers, but is {mix!r:.80}"
        )
    shares: Any = np.asarray(mix)
    if switches:
        return LocalLoss(float(feasible), shares, 0.0, 0.0)
    return LocalLoss(
        wire.read_float(decision, "objective"),
        shares,
        wire.read_float(decision, "penalty"),
        wire.read_float(decision, "tolerance"),
    )


def encode_decision(loss: LocalLoss, switches: bool, feasible: bool) -> ConfigRecord:
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


def clip_direction(direction: wire.Arrays, limit: float) -> wire.Arrays:
    """A direction no longer than ``limit``, over all of its arrays."""
    norm = math.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in direction.values()))
    if norm <= limit:
        return direction
    return {name: (part * (limit / norm)).astype(part.dtype) for name, part in direction.items()}


def encode_intervals(intervals: Sequence[Interval]) -> MetricRecord:
    """Intervals, to be sent."""
    rows = [asdict(interval) for interval in intervals]
    kinds: dict[str, Callable[[Any], int | float]] = {
        "rows": int,
        "approximate": int,
        "method": list(IntervalMethod).index,
    }
    return MetricRecord({name: [kinds.get(name, float)(row[name]) for row in rows] for name in rows[0]})


def _ranges(settings: ConfigRecord, constraints: int) -> list[Range | None]:
    """The ranges of f and g, where they are known: two lists of numbers, NaN for none."""
    low, high = wire.read_numbers(settings, "low"), wire.read_numbers(settings, "high")
    two = wire.read_numbers(settings, "two_values") if "two_values" in settings else [0.0] * len(low)
    if not len(low) == len(high) == len(two) == 1 + constraints:
        raise wire.InvalidMessageError(f"there must be ranges of 1 objective and {constraints} constraints")
    if any(not (math.isfinite(a) and a < b < math.inf) for a, b in zip(low, high, strict=True) if not math.isnan(a)):
        raise wire.InvalidMessageError("its ranges must be finite, the lower end below the upper")
    return [
        None if math.isnan(ends[0]) else frozenset(ends[:2]) if ends[2] else ends[:2]
        for ends in zip(low, high, two, strict=True)
    ]
