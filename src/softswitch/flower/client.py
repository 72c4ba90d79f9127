"""client_app(): a Flower ClientApp that answers the server's messages with a local client."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp

from softswitch.flower import compression as codes
from softswitch.flower import messages as wire
from softswitch.flower import secure_client, secure_protocol
from softswitch.flower.local_client import LocalOracle, RefusalError, Task
from softswitch.flower.membership import get_version, protocol_mismatch
from softswitch.flower.policy import ClientPolicy
from softswitch.methods.messages import LocalLoss
from softswitch.problem.ranges import Range
from softswitch.results.certificate import Interval, IntervalMethod

Factory = Callable[[Context], LocalOracle]
Handler = Callable[[LocalOracle, Message, Context], Message]
MAX_INT, MAX_LOCAL_STEPS = 2**63 - 1, 10**6
_CLIENTS: dict[tuple[int, int], LocalOracle] = {}
"""The clients of the present run in this process, by run and node. Ray unpickles the app for every message."""


def client_app(
    factory: Factory, policy: ClientPolicy | None = None, *, signing_keys: secure_client.SigningKeys | None = None
) -> ClientApp:
    """Return a Flower ClientApp for the client that ``factory`` creates.

    A client that raises ``RefusalError`` is excluded from the round with its reason. A client that raises another
    exception is lost in the round.

    Args:
        factory: Creates a client from Flower's context, whose ``node_config`` identifies the node. The client is a
            ``JaxClient``, a ``TorchClient``, a ``NumpyClient`` or another object with the methods of ``LocalOracle``.
            It is created once per run and process: once per message in a deployment, once in a simulation.
        policy: The rules for requests, such as minimum numbers of rows and maximum numbers of rounds. Default:
            ``ClientPolicy()``, which requires ten rows of each class.
        signing_keys: The keys that sign the key exchange of secure aggregation. Default: the exchange is not signed.
    """
    handlers = _Handlers(ClientPolicy() if policy is None else policy, signing_keys)

    def get_client(context: Context) -> LocalOracle:
        key = (context.run_id, context.node_id)
        if key not in _CLIENTS:
            for finished in [other for other in _CLIENTS if other[0] != context.run_id]:
                del _CLIENTS[finished]
            client = factory(context)
            if not isinstance(client, LocalOracle):
                raise TypeError(
                    f"factory must return a client with the methods of LocalOracle, but returned {client!r}"
                )
            _CLIENTS[key] = handlers.policy.restrict(client)
        return _CLIENTS[key]

    def handle_with(handler: Handler) -> Callable[[Message, Context], Message]:
        def handle(message: Message, context: Context) -> Message:
            try:
                client = get_client(context)
                handlers.policy.admit(client, message.metadata.message_type, context)
                return handler(client, message, context)
            except RefusalError as refusal:
                return wire.refuse(message, str(refusal))
            except codes.OutdatedParamsError as outdated:
                return wire.refuse(message, str(outdated), **{codes.NEEDS_PARAMS: True})
            except wire.InvalidMessageError as error:
                return wire.refuse(message, f"the server's message is invalid: {error}")

        return handle

    app = ClientApp()
    app.query("register")(handle_with(handlers.register))
    app.query("report")(handle_with(handlers.report))
    app.train("update")(handle_with(handlers.update))
    app.query("unmask")(handle_with(handlers.unmask))
    app.evaluate("values")(handle_with(handlers.evaluate))
    app.evaluate("certify")(handle_with(handlers.certify))
    return app


@dataclass(frozen=True)
class _Handlers:
    policy: ClientPolicy
    signing_keys: secure_client.SigningKeys | None

    def register(self, client: LocalOracle, message: Message, context: Context) -> Message:
        settings = message.content.get(wire.SETTINGS)
        mismatch = protocol_mismatch(settings if isinstance(settings, ConfigRecord) else None, "server")
        if mismatch is not None:
            raise RefusalError(mismatch)
        registration: dict[str, Any] = {
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
        return wire.reply(message, **{wire.REGISTRATION: ConfigRecord(registration)})

    def report(self, client: LocalOracle, message: Message, context: Context) -> Message:
        """Report values at w_k, and at w_{k−1} if requested; keep w_k for the update."""
        settings = wire.get_config(message.content, wire.SETTINGS)
        record, earlier = codes.read_params(message, context)
        self.policy.count(wire.REPORT, context)  # after read_params: a request for whole parameters is not a report
        params, task = wire.from_record(record), self.policy.seed_batches(_parse_task(settings))
        previous = None
        if wire.PREVIOUS in settings and getattr(client, "can_repeat_reports", False):
            previous = _find_previous(settings[wire.PREVIOUS], params, earlier, message, context)
        codes.settle_errors(settings, context)
        values = client.report(params, task)
        context.state[wire.PARAMS] = record
        context.state[wire.SETTINGS] = settings
        records: dict[str, Any] = {wire.VALUES: wire.encode_values(values)}
        if previous is not None:
            previous_values = values if previous is params else client.report(previous, task)
            records[wire.PREVIOUS_VALUES] = wire.encode_values(previous_values)
        if settings.get(secure_protocol.MASKED) is True:
            records[secure_protocol.ROUND_KEY] = secure_client.create_round_key(
                task.round, client.name, context, self.signing_keys
            )
        return _reply(client, message, records)

    def update(self, client: LocalOracle, message: Message, context: Context) -> Message:
        """Compute a direction at the parameters of the report, or at those sent again with this message."""
        self.policy.count(wire.UPDATE, context)
        content, policy = message.content, self.policy
        if policy.min_secure_clients is not None and secure_protocol.TERMS not in content:
            raise RefusalError("it sends directions only with secure aggregation (client policy)")
        decision = wire.get_config(content, wire.DECISION)
        source = content if wire.PARAMS in content else context.state
        params, settings = source.get(wire.PARAMS), source.get(wire.SETTINGS)
        if not isinstance(params, ArrayRecord) or not isinstance(settings, ConfigRecord):
            raise RefusalError("it lost the parameters of the round in a restart after its report")
        task = _parse_task(settings)
        if str(task.round) != message.metadata.group_id:
            raise RefusalError(
                f"it has the parameters of round {task.round}, but the request is for round {message.metadata.group_id}"
            )
        loss = _parse_local_loss(decision, client.constraints)
        direction = client.update(wire.from_record(params), policy.seed_batches(task), loss)
        clip_norm = settings.get("clip_norm")
        if isinstance(clip_norm, float):
            direction = clip_direction(direction, clip_norm)
        if secure_protocol.TERMS in content:
            terms = secure_protocol.parse_terms(content[secure_protocol.TERMS])
            direction, min_clients = clip_direction(direction, terms.limit), policy.min_secure_clients or 0
            masked = secure_client.mask_direction(
                direction, terms, client.name, context, min_clients, self.signing_keys
            )
            return _reply(client, message, masked)
        if codes.UP in settings:
            return _reply(
                client, message, {wire.DIRECTION: codes.compress_direction(direction, settings, decision, context)}
            )
        return _reply(client, message, {wire.DIRECTION: wire.to_record(direction)})

    def unmask(self, client: LocalOracle, message: Message, context: Context) -> Message:
        """Send what the server needs to remove the masks from the sum."""
        unmasking = secure_client.unmask(message, context, self.policy.min_secure_clients or 0)
        return wire.reply(message, **{secure_protocol.UNMASKING: unmasking})

    def evaluate(self, client: LocalOracle, message: Message, context: Context) -> Message:
        self.policy.count(wire.EVALUATE, context)
        params = wire.from_record(message.content.get(wire.PARAMS))
        return _reply(client, message, {wire.VALUES: wire.encode_values(client.evaluate(params))})

    def certify(self, client: LocalOracle, message: Message, context: Context) -> Message:
        self.policy.count(wire.CERTIFY, context)
        settings = wire.get_config(message.content, wire.SETTINGS)
        params = wire.from_record(message.content.get(wire.PARAMS))
        if not client.held_out_rows:
            raise RefusalError("it has no held-out rows")
        error = _parse_probability(settings, "error")
        options: dict[str, Any] = {}
        if "marginal" in settings and "levels" in inspect.signature(client.certify).parameters:
            from softswitch.certification.intervals import ErrorLevels  # imports SciPy

            marginal, tolerance = _parse_probability(settings, "marginal"), wire.read_float(settings, "tolerance")
            options["levels"] = ErrorLevels(error, marginal, tolerance)
        intervals = client.certify(params, error, _parse_ranges(settings, client.constraints), **options)
        return _reply(client, message, {wire.INTERVALS: encode_intervals(intervals)})


def _reply(client: LocalOracle, message: Message, records: dict[str, Any]) -> Message:
    """Reply with values that depend on rows; a private client adds its spent budget."""
    if (privacy := getattr(client, "privacy_report", None)) is not None:
        records[wire.PRIVACY] = ConfigRecord(dict(privacy))
    return wire.reply(message, **records)


def _find_previous(
    digest: Any, params: wire.Arrays, earlier: Iterable[wire.Arrays], message: Message, context: Context
) -> wire.Arrays | None:
    """Return w_{k−1} with this digest from the message or the client's state, or None if the client lacks it."""
    if not isinstance(digest, bytes):
        raise wire.InvalidMessageError(f"its {wire.PREVIOUS} must be a digest, but is {digest!r:.80}")
    if codes.digest(params) == digest:  # the first round of a run or restart
        return params
    records = message.content.get(wire.PREVIOUS), context.state.get(wire.PARAMS)
    held = (wire.from_record(record) for record in records if isinstance(record, ArrayRecord))
    return next((candidate for candidate in (*earlier, *held) if codes.digest(candidate) == digest), None)


def _parse_task(settings: ConfigRecord) -> Task:
    local_steps = wire.read_int(settings, "local_steps", MAX_LOCAL_STEPS)
    if not local_steps:
        raise wire.InvalidMessageError("its local_steps must be at least 1, but is 0")
    return Task(
        wire.read_int(settings, "round", MAX_INT),
        wire.read_int(settings, "seed", MAX_INT),
        local_steps,
        wire.read_float(settings, "step_size"),
        wire.read_bool(settings, "switches"),
    )


def _parse_probability(settings: ConfigRecord, name: str) -> float:
    value = wire.read_float(settings, name)
    if not 0 < value < 1:
        raise wire.InvalidMessageError(f"its {name} must be between 0 and 1, but is {value:g}")
    return value


def _parse_local_loss(decision: ConfigRecord, constraints: int) -> LocalLoss:
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
    weights: Any = np.asarray(mix)
    if switches:
        return LocalLoss(float(feasible), weights, 0.0, 0.0)
    objective, penalty, tolerance = (wire.read_float(decision, name) for name in ("objective", "penalty", "tolerance"))
    return LocalLoss(objective, weights, penalty, tolerance)


def encode_decision(loss: LocalLoss, switches: bool, feasible: bool) -> ConfigRecord:
    """Return the decision for one client as a record; one bit is enough for a switching method and one constraint."""
    mix = [float(weight) for weight in loss.constraint]
    if not switches:
        objective, penalty, tolerance = float(loss.objective), float(loss.penalty), float(loss.tolerance)
        return ConfigRecord({"objective": objective, "constraint": mix, "penalty": penalty, "tolerance": tolerance})
    if feasible or len(mix) == 1:
        return ConfigRecord({"feasible": feasible})
    return ConfigRecord({"feasible": feasible, "constraint": mix})


def clip_direction(direction: wire.Arrays, limit: float) -> wire.Arrays:
    """Return a direction scaled to a norm of at most ``limit``, over all of its arrays."""
    norm = math.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in direction.values()))
    if norm <= limit:
        return direction
    return {name: (part * (limit / norm)).astype(part.dtype) for name, part in direction.items()}


def encode_intervals(intervals: Sequence[Interval]) -> MetricRecord:
    """Return intervals as a record with one list per attribute."""
    rows = [asdict(interval) for interval in intervals]
    converters: dict[str, Callable[[Any], int | float]] = {
        "rows": int,
        "approximate": int,
        "method": list(IntervalMethod).index,
    }
    return MetricRecord({name: [converters.get(name, float)(row[name]) for row in rows] for name in rows[0]})


def _parse_ranges(settings: ConfigRecord, constraints: int) -> list[Range | None]:
    """Return the ranges of f and each g; NaN limits mean that a range is not known."""
    low, high = wire.read_numbers(settings, "low"), wire.read_numbers(settings, "high")
    binary = wire.read_numbers(settings, "two_values") if "two_values" in settings else [0.0] * len(low)
    if not len(low) == len(high) == len(binary) == 1 + constraints:
        raise wire.InvalidMessageError(f"its ranges must be those of 1 objective and {constraints} constraints")
    if any(not (math.isfinite(a) and a < b < math.inf) for a, b in zip(low, high, strict=True) if not math.isnan(a)):
        raise wire.InvalidMessageError("its ranges must be finite, with each lower limit below the upper one")
    return [
        None if math.isnan(a) else frozenset((a, b)) if is_binary else (a, b)
        for a, b, is_binary in zip(low, high, binary, strict=True)
    ]
