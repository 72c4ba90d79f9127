"""client_app(): a Flower ClientApp that answers the server's messages with a local client, by the client's policy."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from filelock import FileLock
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from softswitch.flower import compression as codes
from softswitch.flower import messages as wire
from softswitch.flower import secure_aggregation as secure
from softswitch.flower.local_client import LocalOracle, RefusalError, Task, refuse_unless
from softswitch.flower.membership import ClientInfo, get_version, protocol_mismatch
from softswitch.flower.messages import encode_intervals, require
from softswitch.methods.messages import LocalLoss
from softswitch.problem.ranges import Range, is_interval
from softswitch.support import checks
from softswitch.support.files import write_atomically

MAX_LOCAL_STEPS = 10**6
MIN_ROWS = 10
SECRET_SEED_BITS = 96
COUNTERS = {
    wire.REPORT: "reports",
    wire.DERIVATIVES: "reports",
    wire.UPDATE: "updates",
    wire.EVALUATE: "evaluations",
    wire.CERTIFY: "evaluations",
}
_CLIENTS: dict[tuple[int, int], LocalOracle] = {}
"""The clients of the present run in this process, by run and node. Ray unpickles the app for every message."""


@dataclass(frozen=True, kw_only=True)
class ClientPolicy:
    """Rules that a client applies to every request, as in ``client_app(factory, ClientPolicy(min_rows=50))``.

    By default a client refuses to compute on a class, batch or table of fewer than ten rows, because values and
    gradients of a single row reveal its features. To take part without a small class, leave out its rows, and return −∞
    for its functions. This is not a privacy guarantee; use ``PrivateClient`` for one.

    A request that violates a rule is refused with the reason. The rules bind only this package: they do not restrict
    other code that runs on the same node.

    Attributes:
        min_rows: Minimum number of training rows, of held-out rows if there are any, and of rows in a batch.
        min_class_rows: Minimum number of rows of a class, and of the expected rows of each class in a batch. The client
            must declare its classes: with ``classes=``, or with an attribute ``class_rows``, such as
            ``{"sick": 120, "well": 800}``. Set this to 1 if no function depends on a class. It does not apply to a
            ``PrivateClient`` with ``epsilon`` and at most ε = 10 for all its releases, because its noise covers single
            rows of every class.
        secret_batches: Draw batches with a secret seed instead of the run's seed, which the server knows. Otherwise the
            server can solve for single rows from many batches at the same parameters. Runs are then not reproducible.
        min_secure_clients: Minimum effective number of clients in secure aggregation (``SecureAggregation``): no client
            may have more than 1/``min_secure_clients`` of a sum. Default: directions are also sent without it.
        second_order: Return second derivatives to a server that runs ``SQP``: gradients and a matrix of d × d numbers
            in every exchange. A request is refused if the curvature of few rows makes up the matrix: if
            (Σa)²/Σa² < ``min_class_rows`` for the curvatures a of the rows, for the objective or for a constraint.
            Default: False.
        min_second_order_rows: Minimum number of rows of each class for second derivatives. Default: twice the number of
            parameters, and at least ``min_class_rows``.
        max_rounds, max_evaluations: Maximum numbers of rounds, and of evaluations and certificates, over all runs on
            the same data; None for no maximum. An exchange of second derivatives counts as a round, also if it is
            refused for its curvatures. Default: 10,000 and 1,000.
        counter_file: File that counts them. Default: a file in the folder ``softswitch/answers`` of
            ``$XDG_STATE_HOME`` (``~/.local/state`` if it is not set), for the client's name and a digest of its data.
        max_distance: Largest Euclidean distance of the parameters in a request from the client's ``start``. Default:
            no limit, because parameters have no natural scale: see "What leaves a client". It does not apply to a
            private client.
    """

    min_rows: int = MIN_ROWS
    min_class_rows: int = MIN_ROWS
    secret_batches: bool = False
    min_secure_clients: int | None = None
    second_order: bool = False
    min_second_order_rows: int | None = None
    max_rounds: int | None = 10_000
    max_evaluations: int | None = 1_000
    counter_file: str | Path | None = None
    max_distance: float | None = None

    def __post_init__(self) -> None:
        for name in ("secret_batches", "second_order"):
            checks.check_instance(name, getattr(self, name), bool)
        counts = ("min_rows", "min_class_rows", "min_secure_clients", "min_second_order_rows")
        checks.check_given(self, checks.check_integer, *counts, "max_rounds", "max_evaluations", minimum=0)
        checks.check_given(self, checks.check_real, "max_distance", above=0)
        if not isinstance(self.counter_file, str | Path | None):
            raise TypeError(f"counter_file must be the path of a file, but is {self.counter_file!r}")

    @classmethod
    def for_simulations(cls) -> ClientPolicy:
        """Return a policy without limits on sizes and counts, for simulations in which all data is on one machine.

        Set ``second_order=True`` with ``dataclasses.replace`` for runs with ``SQP``.
        """
        return cls(min_rows=1, min_class_rows=1, min_second_order_rows=1, max_rounds=None, max_evaluations=None)


def client_app(
    factory: Callable[[Context], LocalOracle],
    policy: ClientPolicy | None = None,
    *,
    signing_keys: secure.SigningKeys | None = None,
) -> ClientApp:
    """Return a Flower ClientApp for the client that ``factory`` creates.

    A client that raises ``RefusalError`` is excluded from the round with its reason, or from the run if the factory
    raises it. A client that raises another exception is lost in the round.

    Args:
        factory: Creates a client from Flower's context, whose ``node_config`` identifies the node. The client is a
            ``JaxClient``, a ``TorchClient``, a ``NumpyClient`` or another object with the methods of ``LocalOracle``.
            It is created once per run and process: once per message in a deployment, once in a simulation.
        policy: The rules for requests, such as minimum numbers of rows and maximum numbers of rounds. Default:
            ``ClientPolicy()``, which requires ten rows of each class and counts answers.
        signing_keys: The keys that sign the key exchange of secure aggregation. Default: the exchange is not signed.
    """
    handlers = MessageHandlers(policy or ClientPolicy(), signing_keys)
    by_kind: dict[str, Callable[[Any, Message, Context], dict[str, Any]]] = {
        wire.REGISTER: handlers.register,
        wire.REPORT: handlers.report,
        wire.UPDATE: handlers.update,
        wire.EVALUATE: handlers.evaluate,
        wire.DERIVATIVES: handlers.differentiate,
        wire.CERTIFY: handlers.certify,
    }

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
            _CLIENTS[key] = client
        return _CLIENTS[key]

    def handle(message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        try:
            client = get_client(context)
            handlers.check(client, kind)
            records = by_kind[kind](client, message, context)
        except RefusalError as refusal:
            return wire.refuse(message, str(refusal))
        except codes.OutdatedParamsError as outdated:
            return wire.refuse(message, str(outdated), **{codes.NEEDS_PARAMS: True})
        except wire.InvalidMessageError as error:
            return wire.refuse(message, f"the server's message is invalid: {error}")
        privacy = getattr(client, "privacy_report", None)
        if privacy is not None and kind in COUNTERS:  # these replies depend on rows
            records[wire.PRIVACY] = ConfigRecord(dict(privacy))
        return wire.reply(message, **records)

    app = ClientApp()
    for kind in by_kind:
        category, action = kind.split(".")
        getattr(app, category)(action)(handle)
    return app


@dataclass(frozen=True)
class MessageHandlers:
    """The replies of a client to messages, as records by name, and the checks by its policy."""

    policy: ClientPolicy
    signing_keys: secure.SigningKeys | None = None

    def check(self, client: LocalOracle, kind: str) -> None:
        """Raise ``RefusalError`` if a client must not answer a message of this kind."""
        for attribute in ("rows", "held_out_rows", "value_rows", "gradient_rows"):
            rows = int(getattr(client, attribute))
            problem = f"it has {rows} {attribute.replace('_', ' ')}, but its policy requires {self.policy.min_rows}"
            refuse_unless(rows >= self.policy.min_rows or (not rows and attribute == "held_out_rows"), problem)
        if is_private(client):
            return
        self._check_classes(client, kind)
        min_rows = self.policy.min_class_rows
        per_batch = getattr(client, "class_rows_per_batch", min_rows)
        problem = f"its batches have {per_batch} rows of its rarest class, but its policy requires {min_rows}"
        refuse_unless(per_batch >= min_rows, f"{problem}: increase batch_size, or use all rows (batch_size=None)")

    def seed_batches(self, task: Task) -> Task:
        """Return the task with the seed by which the client draws its batches."""
        return task._replace(seed=secrets.randbits(SECRET_SEED_BITS)) if self.policy.secret_batches else task

    def _check_classes(self, client: Any, kind: str) -> None:
        """Raise ``RefusalError`` if a class has too few rows, or none is declared."""
        min_rows = self.policy.min_class_rows
        if min_rows <= 1:
            return
        class_rows: Any = getattr(client, "class_rows", None)
        problem = f"its policy requires {min_rows} rows of each class, but its classes are not declared: set classes or"
        refuse_unless(class_rows is not None, f"{problem} class_rows, or min_class_rows=1 if no function needs them")
        small = f"class of fewer than {min_rows} rows (client policy: min_class_rows); leave out its rows"
        refuse_unless(min(class_rows.values(), default=0) >= min_rows, f"it has a {small}")
        if kind == wire.CERTIFY and client.held_out_rows and hasattr(client, "held_out_class_rows"):
            problem = f"its policy requires {min_rows} rows of each class, but held-out rows have no declared classes"
            class_rows = client.held_out_class_rows
            refuse_unless(class_rows is not None, f"{problem}: set held_out_classes")
            refuse_unless(min(class_rows.values()) >= min_rows, f"it has a held-out {small}")

    def _check_second_order(self, client: Any) -> None:
        """Raise ``RefusalError`` if a client must not send second derivatives."""
        refuse_unless(self.policy.second_order, "it sends no second derivatives (client policy: second_order)")
        refuse_unless(self.policy.min_secure_clients is None, "it sends directions only with secure aggregation")
        is_able = getattr(client, "pieces", 0) > 0 and not hasattr(client, "privacy_report")
        refuse_unless(is_able, "it cannot compute second derivatives, or is differentially private")
        sizes = (getattr(client, "class_rows", None) or {"all rows": client.rows}).values()
        minimum = self.policy.min_second_order_rows
        if minimum is None:
            minimum = max(self.policy.min_class_rows, 2 * sum(np.size(array) for array in client.start.values()))
        problem = f"it has a class of fewer than {minimum} rows, for which it sends no second derivatives"
        refuse_unless(min(sizes) >= minimum, f"{problem} (client policy: min_second_order_rows)")

    def _check_curvatures(self, curvatures: np.ndarray) -> None:
        """Raise ``RefusalError`` if few rows make up the curvature of a function. The reason has no number of them."""
        largest = curvatures.max(axis=0, initial=0.0)
        shares = (curvatures / np.where(largest > 0, largest, 1.0))[:, largest != 0]
        effective = shares.sum(axis=0) ** 2 / (shares**2).sum(axis=0)
        problem = f"at these parameters fewer than {self.policy.min_class_rows} rows make up its second derivatives"
        refuse_unless((effective >= self.policy.min_class_rows).all(), f"{problem} (client policy: min_class_rows)")

    def _admit(self, client: Any, kind: str, *points: wire.Arrays) -> None:
        """Count a request at these parameters, or raise ``RefusalError`` if the policy does not allow an answer."""
        if self.policy.max_distance is not None and not is_private(client):
            start: Any = getattr(client, "start", None)
            refuse_unless(start is not None, "it has no start, from which its policy limits max_distance")
            limit, distance = self.policy.max_distance, max(measure_distance(point, start) for point in points)
            problem = f"the parameters are {distance:.3g} from its start, but its policy allows {limit:g}"
            refuse_unless(distance <= limit, f"{problem} (client policy: max_distance)")
        name = COUNTERS[kind]
        limit_name = "max_evaluations" if name == "evaluations" else "max_rounds"
        maximum = getattr(self.policy, limit_name)
        if maximum is None:
            return
        file = self.policy.counter_file or find_counter_file(client)
        try:
            is_allowed = count_answer(Path(file).expanduser(), name, maximum)
        except (OSError, RuntimeError, ValueError, AttributeError, TypeError) as error:
            problem = f"its counter_file cannot be read or written ({type(error).__name__})"
            raise RefusalError(f"{problem}; set counter_file of its policy to a file that is kept") from error
        refuse_unless(is_allowed, f"it has answered {maximum} {name} (client policy: {limit_name})")

    def register(self, client: LocalOracle, message: Message, context: Context) -> dict[str, Any]:
        """Return what the server must know about the client."""
        settings = message.content.get(wire.SETTINGS)
        mismatch = protocol_mismatch(settings if isinstance(settings, ConfigRecord) else {}, "server")
        refuse_unless(mismatch is None, str(mismatch))
        try:
            self._check_second_order(client)
            second_order = True
        except RefusalError:
            second_order = False
        registration = asdict(ClientInfo.of(client, second_order=second_order))
        return {wire.REGISTRATION: ConfigRecord({**get_version(), **registration})}

    def report(self, client: LocalOracle, message: Message, context: Context) -> dict[str, Any]:
        """Report values at w_k, and at w_{k−1} if requested; keep w_k for the update."""
        settings = wire.get_config(message.content, wire.SETTINGS)
        record, earlier = codes.read_params(message, context)
        params = wire.from_record(record)
        previous = None
        if wire.PREVIOUS in settings and getattr(client, "can_repeat_reports", False):
            previous = _find_previous(settings[wire.PREVIOUS], params, earlier, message, context)
        points = (params,) if previous is None else (params, previous)
        self._admit(client, wire.REPORT, *points)  # after read_params: a request for whole parameters is not a report
        task = self.seed_batches(_parse_task(settings))
        codes.settle_errors(settings, context)
        values = client.report(params, task)
        context.state[wire.PARAMS] = record
        context.state[wire.SETTINGS] = settings
        records: dict[str, Any] = {wire.VALUES: wire.encode_values(values)}
        if previous is not None:
            previous_values = values if previous is params else client.report(previous, task)
            records[wire.PREVIOUS_VALUES] = wire.encode_values(previous_values)
        if settings.get(secure.MASKED) is True:
            key = secure.create_round_key(task.round, client.name, context, self.signing_keys)
            records[secure.ROUND_KEY] = key
        return records

    def update(self, client: LocalOracle, message: Message, context: Context) -> dict[str, Any]:
        """Compute a direction at the parameters of the report."""
        content = message.content
        min_clients, is_masked = self.policy.min_secure_clients, secure.TERMS in content
        is_allowed = min_clients is None or is_masked
        refuse_unless(is_allowed, "it sends directions only with secure aggregation (client policy)")
        source = content if wire.PARAMS in content else context.state
        params, settings = source.get(wire.PARAMS), source.get(wire.SETTINGS)
        if not isinstance(params, ArrayRecord) or not isinstance(settings, ConfigRecord):
            error = RefusalError if is_masked else codes.OutdatedParamsError  # the round key is lost too
            raise error("it lost the parameters of the round in a restart after its report")
        point = wire.from_record(params)
        self._admit(client, wire.UPDATE, point)  # after this: a request for whole parameters is not an update
        task, wanted = _parse_task(settings), message.metadata.group_id
        problem = f"it has the parameters of round {task.round}, but the request is for round {wanted}"
        refuse_unless(str(task.round) == wanted, problem)
        context.state[wire.PARAMS], context.state[wire.SETTINGS] = params, settings

        def compute(loss: LocalLoss) -> wire.Arrays:
            direction = client.update(point, self.seed_batches(task), loss)
            clip_norm = settings.get("clip_norm")
            return clip_direction(direction, clip_norm) if isinstance(clip_norm, int | float) else direction

        if is_masked:
            is_exact = client.value_rows >= client.rows and not hasattr(client, "privacy_report")
            refuse_unless(is_exact, "it reports on batches or with noise: many sums with weights that vary reveal it")
            terms = secure.parse_terms(content[secure.TERMS], client.constraints)
            rules = min_clients or 0, self.signing_keys
            return secure.mask_direction(compute, terms, client.name, params, settings, context, *rules)
        decision = wire.get_config(content, wire.DECISION)
        direction = compute(_parse_local_loss(decision, client.constraints))
        if codes.UP in settings:
            return {wire.DIRECTION: codes.compress_direction(direction, settings, decision, context)}
        return {wire.DIRECTION: wire.to_record(direction)}

    def evaluate(self, client: LocalOracle, message: Message, context: Context) -> dict[str, Any]:
        """Return f_i and g_i on all rows."""
        params = wire.from_record(message.content.get(wire.PARAMS))
        self._admit(client, wire.EVALUATE, params)
        return {wire.VALUES: wire.encode_values(client.evaluate(params))}

    def differentiate(self, client: Any, message: Message, context: Context) -> dict[str, Any]:
        """Return values, gradients and the weighted Hessian, if enough rows make it up."""
        self._check_second_order(client)
        params = wire.from_record(message.content.get(wire.PARAMS))
        weights = np.array(wire.read_numbers(wire.get_config(message.content, wire.DECISION), "weights"))
        is_valid = weights.shape == (1 + client.pieces,) and np.isfinite(weights).all() and (weights >= 0).all()
        require(is_valid, f"its weights must be {1 + client.pieces} finite numbers >= 0")
        self._admit(
            client, wire.DERIVATIVES, params
        )  # before the next line: a refusal reveals something about the rows
        if weights.any() and self.policy.min_class_rows > 1:
            self._check_curvatures(client.row_curvatures(params, weights))
        return wire.encode_derivatives(client.derivatives(params, weights), with_hessian=bool(weights.any()))

    def certify(self, client: LocalOracle, message: Message, context: Context) -> dict[str, Any]:
        """Return confidence intervals from the held-out rows."""
        params = wire.from_record(message.content.get(wire.PARAMS))
        self._admit(client, wire.CERTIFY, params)
        settings = wire.get_config(message.content, wire.SETTINGS)
        refuse_unless(client.held_out_rows, "it has no held-out rows")
        from softswitch.certification.intervals import ErrorLevels  # imports SciPy

        levels = ErrorLevels(*(wire.read(settings, name, float) for name in ErrorLevels._fields))
        is_valid = 0 < levels.joint <= levels.marginal < 1
        require(is_valid, f"its error probabilities must be between 0 and 1, but are {levels.joint}, {levels.marginal}")
        intervals = client.certify(params, levels, _parse_ranges(settings, client.constraints))
        return {wire.INTERVALS: encode_intervals(intervals)}


def is_private(client: Any) -> bool:
    """Return whether a client's noise covers single rows, so that it needs no limits on classes and parameters."""
    return bool(getattr(client, "protects_rows", False))


def measure_distance(params: wire.Arrays, start: wire.Arrays) -> float:
    """Return the Euclidean distance between parameters, over all arrays."""
    shapes, expected = ({name: np.shape(array) for name, array in arrays.items()} for arrays in (params, start))
    require(shapes == expected, f"its parameters must have the shapes {expected}, but have {shapes}"[:200])
    return math.sqrt(sum(float(np.square(np.asarray(params[name], float) - start[name]).sum()) for name in start))


def find_counter_file(client: Any) -> Path:
    """Return the default file that counts the answers of a client, for its name and data."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():  # as the XDG specification demands
        state = Path("~/.local/state")
    identity = json.dumps([client.name, client.rows, client.held_out_rows, getattr(client, "data_digest", None)])
    return state / "softswitch" / "answers" / f"{hashlib.sha256(identity.encode()).hexdigest()}.json"


def count_answer(file: Path, name: str, maximum: int) -> bool:
    """Count an answer in a file unless the maximum is reached, and return whether it is allowed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f".{file.name}.lock")):
        counts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        count = int(counts.get(name, 0))
        if count < maximum:
            write_atomically(file, json.dumps(counts | {name: count + 1}).encode())
        return count < maximum


def _find_previous(
    digest: Any, params: wire.Arrays, earlier: Iterable[wire.Arrays], message: Message, context: Context
) -> wire.Arrays | None:
    """Return w_{k−1} with this digest from the message or the client's state, or None if the client lacks it."""
    require(isinstance(digest, bytes), f"its {wire.PREVIOUS} must be a digest, but is {digest!r:.80}")
    records = message.content.get(wire.PREVIOUS), context.state.get(wire.PARAMS)
    held = (wire.from_record(record) for record in records if isinstance(record, ArrayRecord))
    candidates = (each for source in ([params], earlier, held) for each in source)  # w_k itself in the first round
    return next((candidate for candidate in candidates if codes.digest(candidate) == digest), None)


def _parse_task(settings: ConfigRecord) -> Task:
    task = Task(**{name: wire.read(settings, name, kind) for name, kind in get_type_hints(Task).items()})
    is_valid = 1 <= task.local_steps <= MAX_LOCAL_STEPS
    require(is_valid, f"its local_steps must be from 1 to {MAX_LOCAL_STEPS:,}, but is {task.local_steps}")
    return task


def _parse_local_loss(decision: ConfigRecord, constraints: int) -> LocalLoss:
    switches = "feasible" in decision
    feasible = switches and wire.read(decision, "feasible", bool)
    mix = [0.0] * constraints
    if not feasible:
        is_single = switches and constraints == 1 and "constraint" not in decision
        mix = [1.0] if is_single else wire.read_numbers(decision, "constraint")
    is_valid = len(mix) == constraints and np.isfinite(mix).all()
    require(is_valid, f"its mix of constraints must be {constraints} finite numbers, but is {mix!r:.80}")
    weights: Any = np.asarray(mix)
    if switches:
        return LocalLoss(float(feasible), weights, 0.0, 0.0)
    objective, penalty, tolerance = (wire.read(decision, name, float) for name in ("objective", "penalty", "tolerance"))
    return LocalLoss(objective, weights, penalty, tolerance)


def encode_decision(loss: LocalLoss, switches: bool, feasible: bool) -> ConfigRecord:
    """Return the decision for one client as a record; one bit is enough for a switching method and one constraint."""
    mix = [float(weight) for weight in loss.constraint]
    if not switches:
        numbers = {name: float(getattr(loss, name)) for name in ("objective", "penalty", "tolerance")}
        return ConfigRecord({**numbers, "constraint": mix})
    bit: dict[str, Any] = {"feasible": feasible}
    return ConfigRecord(bit if feasible or len(mix) == 1 else bit | {"constraint": mix})


def clip_direction(direction: wire.Arrays, limit: float) -> wire.Arrays:
    """Return a direction scaled to a norm of at most ``limit``, over all of its arrays."""
    norm = math.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in direction.values()))
    if norm <= limit:
        return direction
    return {name: (part * (limit / norm)).astype(part.dtype) for name, part in direction.items()}


def _parse_ranges(settings: ConfigRecord, constraints: int) -> list[Range | None]:
    """Return the ranges of f and each g; NaN limits mean that a range is not known."""
    low, high, binary = (wire.read_numbers(settings, name) for name in ("low", "high", "two_values"))
    is_complete = len(low) == len(high) == len(binary) == 1 + constraints
    require(is_complete, f"its ranges must be those of 1 objective and {constraints} constraints")
    valid = all(math.isnan(a) or is_interval(a, b) for a, b in zip(low, high, strict=True))
    require(valid, "its ranges must have finite lengths, with each lower limit below the upper one")
    return [
        None if math.isnan(a) else frozenset((a, b)) if is_binary else (a, b)
        for a, b, is_binary in zip(low, high, binary, strict=True)
    ]
