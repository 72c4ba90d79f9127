"""Messages between server and clients: names, encoding, the validation of what arrives, and the exchange with a grid.

Arrays are sent in NumPy's format and never pickled. Names, shapes, dtypes, sizes and finiteness are checked before use.
"""

from __future__ import annotations

import io
import logging
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from softswitch.problem.ranges import Range, endpoints
from softswitch.results.certificate import Interval, IntervalMethod
from softswitch.results.events import EventLog

if TYPE_CHECKING:
    from softswitch.methods.sqp import Derivatives

logger = logging.getLogger("softswitch.flower")
PROTOCOL = 5
"""Version of the protocol between server and clients. It increases with every incompatible change."""
REGISTER, REPORT, UPDATE = "query.register", "query.report", "train.update"
EVALUATE, CERTIFY, DERIVATIVES = "evaluate.values", "evaluate.certify", "query.derivatives"  # the types of messages
PARAMS, SETTINGS, DECISION, REGISTRATION = "params", "settings", "decision", "registration"
VALUES, DIRECTION, INTERVALS, REFUSAL, PRIVACY = "values", "direction", "intervals", "refusal", "privacy"
PREVIOUS, PREVIOUS_VALUES, MATRICES = "previous", "previous_values", "derivatives"
"""The names of the records in a message. ``PREVIOUS`` is also the setting with the digest of w_{k−1}."""
MAX_HEADER_BYTES, MAX_TEXT_LENGTH, MAX_INT = 4096, 200, 2**63 - 1
LARGEST_NUMBER, LARGEST_ROWS = 1e12, 10**8
"""Reports and directions with a larger absolute value are rejected, and clients with more rows are turned away."""

SLACK = 1e-5  # tolerance for a client's numbers, in units of their range
METHODS = list(IntervalMethod)
COLUMNS = tuple(field.name for field in fields(Interval))
SHORTEST_POLL, LONGEST_POLL = 0.002, 0.5  # the first and the longest interval between two polls, in seconds
CLIENT_RAISED = 2  # Flower's error code for a ClientApp that raised an exception

Arrays = dict[str, np.ndarray]


class InvalidMessageError(ValueError):
    """A received message failed validation."""


class ArraySpec(NamedTuple):
    """The expected shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: str


class Values(NamedTuple):
    """The values that a client reports.

    Attributes:
        objective: The objective f_i, or −∞ if the client has none.
        constraint: The constraints g_i, one number each.
        statistics: The additive statistics of a pooled constraint. Default: none.
    """

    objective: float
    constraint: list[float]
    statistics: list[float] | None = None


class LocalDerivatives(NamedTuple):
    """What a client returns in an exchange of second order. Parameters are one vector, in the order of sorted names.

    Attributes:
        values: f_i and the smooth pieces of g_i; −∞ for a function that the client does not have.
        gradients: Their gradients; functions × d.
        hessian: Hessian of their sum with the weights of the exchange; d × d.
    """

    values: np.ndarray
    gradients: np.ndarray
    hessian: np.ndarray


def single_client(derivatives: Derivatives, order: Any = slice(None)) -> LocalDerivatives:
    """Return the derivatives of a federation of one client, with the parameters in this order."""
    values = np.r_[derivatives.objective, derivatives.constraint[0]]
    gradients = np.vstack([derivatives.objective_gradient, derivatives.constraint_gradient[0]])
    return LocalDerivatives(values, gradients[:, order], derivatives.hessian[order][:, order])


def to_values(functions: np.ndarray) -> Values:
    """Return the values of f and each g in a vector."""
    return Values(float(functions[0]), functions[1:].tolist())


def require(condition: Any, problem: str) -> None:
    """Raise ``InvalidMessageError`` unless a condition on a received message holds."""
    if not condition:
        raise InvalidMessageError(problem)


def array_specs(arrays: Mapping[str, Any]) -> dict[str, ArraySpec]:
    """Return the shape and dtype of each array."""
    return {name: ArraySpec(tuple(array.shape), str(array.dtype)) for name, array in arrays.items()}


def to_record(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Return named arrays as a Flower record."""
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in arrays.items()})


def from_record(record: Any) -> Arrays:
    """Return the arrays of a record from the server as read-only views, or raise ``InvalidMessageError``."""
    require(isinstance(record, ArrayRecord), "it contains no parameters")
    try:
        arrays = {name: _read_array(array.data) for name, array in record.items()}
        finite = all(np.isfinite(array).all() for array in arrays.values())
    except Exception as error:
        raise InvalidMessageError(f"its parameters are not arrays in NumPy's format: {sanitize(str(error))}") from error
    require(finite, "its parameters contain NaN or infinity")
    return arrays


def parse_arrays(record: Any, expected: Mapping[str, ArraySpec]) -> Arrays:
    """Return a client's arrays of the expected names, shapes and dtypes, or raise ``InvalidMessageError``."""
    require(isinstance(record, ArrayRecord), "it contains no arrays")
    difference = sorted(set(record) ^ set(expected))
    text = sanitize(", ".join(difference[:5]))
    require(not difference, f"its arrays are not those of the model; missing or unknown: {text}")
    return {name: _parse_array(repr(name), record[name].data, spec) for name, spec in expected.items()}


def _parse_array(name: str, data: bytes, expected: ArraySpec) -> np.ndarray:
    max_bytes = math.prod(expected.shape) * np.dtype(expected.dtype).itemsize + MAX_HEADER_BYTES
    require(len(data) <= max_bytes, f"{name} has {len(data):,} bytes, but at most {max_bytes:,} are accepted")
    try:
        array = _read_array(data, expected)
    except Exception as error:
        raise InvalidMessageError(f"{name} is not an array as expected: {error}") from error
    require(np.isfinite(array).all(), f"{name} contains NaN or infinity")
    check_size(name, array)
    return array


def check_size(name: str, values: Any) -> None:
    """Raise ``InvalidMessageError`` if a received number is too large."""
    size = np.abs(values).max(initial=0)
    require(size <= LARGEST_NUMBER, f"{name} has entries up to {size:g}, but at most {LARGEST_NUMBER:g} is accepted")


def _read_array(data: bytes, expected: ArraySpec | None = None) -> np.ndarray:
    """Return an array in NumPy's format; the header is checked first, because it may claim a huge array."""
    stream = io.BytesIO(data)
    is_first_version = np.lib.format.read_magic(stream) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if is_first_version else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream, max_header_size=MAX_HEADER_BYTES)
    require(dtype.kind in "biuf", f"it has dtype {dtype}, but must have real numbers")
    if expected is not None and expected != (shape, str(dtype)):
        sent = f"it is {dtype} of shape {shape}"
        raise InvalidMessageError(f"{sent}, but must be {expected.dtype} of shape {expected.shape}")
    array = np.frombuffer(data, dtype, math.prod(shape), stream.tell())
    return array.reshape(shape, order="F" if fortran else "C")


def encode_values(values: Values) -> MetricRecord:
    """Return a client's values as a record; a single constraint is sent as a number, several as a list."""
    constraint = [float(value) for value in values.constraint]
    record = MetricRecord({"objective": float(values.objective)})
    record["constraint"] = constraint[0] if len(constraint) == 1 else constraint
    if values.statistics is not None:
        record["statistics"] = [float(value) for value in values.statistics]
    return record


def parse_values(content: RecordDict, constraints: int, statistics: int, name: str = VALUES) -> Values:
    """Return a client's values with these numbers of constraints and statistics, or raise ``InvalidMessageError``.

    −∞ means that the client has no such function.
    """
    record: Any = content.get(name)
    require(isinstance(record, MetricRecord), "it contains no report")
    objective, constraint = read_numbers(record, "objective"), read_numbers(record, "constraint")
    counts = f"{len(objective)} and {len(constraint)}"
    expected = f"it must report 1 objective and {constraints} constraints, but reports {counts}"
    require(len(objective) == 1 and len(constraint) == constraints, expected)
    sums = read_numbers(record, "statistics") if statistics else []
    require(len(sums) == statistics, f"it reports {len(sums)} statistics, but {statistics} are expected")
    for value in (*(value for value in (*objective, *constraint) if value != -math.inf), *sums):
        is_small = abs(value) <= LARGEST_NUMBER
        require(is_small, f"it reports {value}, but a number of at most {LARGEST_NUMBER:g} in size is accepted")
    return Values(objective[0], constraint, sums if statistics else None)


def encode_derivatives(found: LocalDerivatives, *, with_hessian: bool) -> dict[str, Any]:
    """Return derivatives as records; of the Hessian only the upper triangle is sent."""
    is_known = ~np.isneginf(found.values)
    arrays = {"gradients": np.where(is_known[:, None], found.gradients, 0.0).astype(np.float64)}
    if with_hessian:
        arrays["hessian"] = found.hessian[np.triu_indices(len(found.hessian))].astype(np.float64)
    return {VALUES: encode_values(to_values(found.values)), MATRICES: to_record(arrays)}


def parse_derivatives(content: RecordDict, pieces: int, size: int, *, with_hessian: bool) -> LocalDerivatives:
    """Return a client's derivatives for a model of this size, or raise ``InvalidMessageError``."""
    values = parse_values(content, pieces, 0)
    specs = {"gradients": ArraySpec((1 + pieces, size), "float64")}
    if with_hessian:
        specs["hessian"] = ArraySpec((size * (size + 1) // 2,), "float64")
    arrays, hessian = parse_arrays(content.get(MATRICES), specs), np.zeros((size, size))
    if with_hessian:
        hessian[np.triu_indices(size)] = arrays["hessian"]
        hessian += np.triu(hessian, 1).T
    return LocalDerivatives(np.array([values.objective, *values.constraint]), arrays["gradients"], hessian)


def reply(message: Message, **records: Any) -> Message:
    """Return a reply with these records."""
    return Message(RecordDict(records), reply_to=message)


def refuse(message: Message, reason: str, **details: Any) -> Message:
    """Return a reply that refuses the request."""
    return reply(message, **{REFUSAL: ConfigRecord({"reason": reason, **details})})


def read_refusal(content: RecordDict) -> str | None:
    """Return the reason for which a client refuses, or None if it does not."""
    record = content.get(REFUSAL)
    return sanitize(str(record.get("reason", ""))) if isinstance(record, ConfigRecord) else None


def sanitize(text: str) -> str:
    """Return received text for a log: short, on one line and without control characters."""
    return " ".join(text.split()).encode("unicode_escape").decode()[:MAX_TEXT_LENGTH]


def get_config(content: RecordDict, name: str, problem: str | None = None) -> ConfigRecord:
    """Return the record of settings with this name, or raise ``InvalidMessageError``."""
    record: Any = content.get(name)
    require(isinstance(record, ConfigRecord), problem or f"it contains no {name}")
    config: ConfigRecord = record
    return config


def read_numbers(record: Mapping[str, Any], name: str) -> list[float]:
    """Return a number, or a list of numbers, as a list."""
    value: Any = record.get(name)
    entries = value if isinstance(value, list) else [value]
    is_valid = all(isinstance(entry, int | float) for entry in entries)
    require(is_valid, f"its {name} must be a number or a list of numbers, but is {value!r:.80}")
    return [float(entry) for entry in entries]


def read_text(record: Mapping[str, Any], name: str) -> str:
    """Return a short printable text."""
    value: Any = record.get(name)
    is_valid = isinstance(value, str) and 0 < len(value.strip()) <= MAX_TEXT_LENGTH and value.isprintable()
    require(is_valid, f"its {name} must be a text of 1 to {MAX_TEXT_LENGTH} characters, but is {value!r:.80}")
    return str(value)


def read(record: Mapping[str, Any], name: str, kind: type, largest: int = MAX_INT) -> Any:
    """Return a bool, an int from 0 to ``largest``, or a finite float, or raise ``InvalidMessageError``."""
    value: Any = record.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_valid, accepted = {
        bool: (isinstance(value, bool), "True or False"),
        int: (is_number and isinstance(value, int) and 0 <= value <= largest, f"an integer from 0 to {largest:,}"),
        float: (is_number and math.isfinite(value), "a finite number"),
    }[kind]
    require(is_valid, f"its {name} must be {accepted}, but is {value!r:.80}")
    return kind(value)


# ---- values within their range, and intervals for the certificate


def check_in_range(value: float, bounds: Range | None) -> None:
    """Raise if a mean of rows, or a gap between two means, is outside the range of single rows."""
    if bounds is None:
        return
    low, high = endpoints(bounds)
    slack = SLACK * max(high - low, abs(low), abs(high))
    is_inside = min(low, 0.0) - slack <= value <= max(high, high - low) + slack
    require(is_inside, f"it reports {value:g}, outside the range {(low, high)} of single rows")


def read_intervals(content: RecordDict, held_out_rows: int, ranges: Sequence[Range | None]) -> list[Interval]:
    """Return the intervals in a client's reply, one for each range, or raise ``InvalidMessageError``.

    The server sees no rows: an interval that is possible for the reported number of rows is accepted.
    """
    record: Any = content.get(INTERVALS)
    require(isinstance(record, MetricRecord), "there are no intervals")
    columns = [read_numbers(record, name) for name in COLUMNS]
    require({len(column) for column in columns} == {len(ranges)}, f"there are not {len(ranges)} intervals")
    intervals = [_parse_interval(dict(zip(COLUMNS, row, strict=True))) for row in zip(*columns, strict=True)]
    for interval, bounds in zip(intervals, ranges, strict=True):
        rows, limits = interval.rows, (interval.lower, interval.upper)
        problem = f"its interval uses {rows:,} rows, but it reported {held_out_rows:,} held-out rows"
        require(rows <= held_out_rows, problem)
        numbers = (interval.estimate, *limits, interval.marginal_upper)
        check_size("its interval", [value for value in numbers if math.isfinite(value)])
        if not rows or math.isnan(interval.estimate):
            has_none = interval.meets_at >= 1 and interval.violates_at >= 1
            require(has_none, "it reports p-values of a function without an estimate")
            continue
        is_normal = interval.method is IntervalMethod.NORMAL  # its limits may be outside the range
        for value in (interval.estimate,) if is_normal else (interval.estimate, *limits):
            check_in_range(value, bounds)
    return intervals


def _parse_interval(row: dict[str, Any]) -> Interval:
    is_valid = (
        all(0 <= row[name] <= 1 for name in ("meets_at", "violates_at"))
        and (math.isnan(row["marginal_upper"]) or row["marginal_upper"] <= row["upper"])
        and row["method"] in range(len(METHODS))
        and row["lower"] <= row["upper"]
        and (math.isnan(row["estimate"]) or row["lower"] <= row["estimate"] <= row["upper"])
        and 0 <= row["rows"] < 2**53
        and row["rows"] == math.floor(row["rows"])
        and row["deviation"] >= 0
        and (row["rows"] >= 1 or (math.isinf(row["lower"]) and math.isinf(row["upper"])))
    )
    require(is_valid, f"{row} is not an interval")
    row |= {"rows": int(row["rows"]), "approximate": row["approximate"] != 0, "method": METHODS[int(row["method"])]}
    return Interval(**row)


def encode_intervals(intervals: Sequence[Interval]) -> MetricRecord:
    """Return intervals as a record with one list per attribute, the inverse of ``read_intervals``."""
    kinds: dict[str, Any] = {"rows": int, "approximate": int, "method": METHODS.index}
    return MetricRecord({name: [kinds.get(name, float)(getattr(one, name)) for one in intervals] for name in COLUMNS})


# ---- exchange of messages within a time limit


class NoReply(Exception):  # noqa: N818 (the outcome of a message, not an error of the server)
    """A client sent no usable reply, for the reason in the text.

    It is ``permanent`` if the client would fail again, ``silent`` if nothing came before the timeout.
    """

    def __init__(self, reason: str, *, permanent: bool = False, silent: bool = False) -> None:
        super().__init__(reason)
        self.permanent, self.silent = permanent, silent


class RefusedError(InvalidMessageError):
    """A client refused a request."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"it refused: {reason}")
        self.reason = reason


Reply = Message | NoReply


def log_event(events: EventLog, what: str, why: str, *, client: str | None = None, node: int | None = None) -> None:
    """Record an event of a client or node, and log it as a warning."""
    who = f"node {node}" if client is None else f"client {client!r}"
    logger.warning("%s%s is %s: %s", "" if events.round is None else f"round {events.round}: ", who, what, why)
    events.record(what, why, client=client, node=node)


def check_reply(reply: Reply) -> RecordDict:
    """Return the content of a reply; raise the failure, or ``RefusedError`` for a refusal."""
    if isinstance(reply, NoReply):
        raise reply
    if (reason := read_refusal(reply.content)) is not None:
        raise RefusedError(reason)
    return reply.content


class PendingMessages:
    """Messages that were sent and have no reply yet, each identified by an integer that the caller chooses."""

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid, self._timeout = grid, timeout
        self._pending: dict[str, tuple[int, float]] = {}  # message id -> (key, deadline)
        self._unsent: list[int] = []

    def __len__(self) -> int:
        return len(self._pending) + len(self._unsent)

    @property
    def keys(self) -> set[int]:
        """The keys of the pending messages."""
        return {key for key, _ in self._pending.values()} | set(self._unsent)

    def send(self, messages: Mapping[int, Message]) -> None:
        """Send messages by their keys."""
        sent = set(self._grid.push_messages(list(messages.values()))) if messages else ()
        deadline = time.monotonic() + self._timeout
        for key, message in messages.items():
            if message.metadata.message_id in sent:
                self._pending[message.metadata.message_id] = key, deadline
            else:
                self._unsent.append(key)

    def poll(self) -> list[tuple[int, Reply]]:
        """Return the replies, failures and timeouts since the last poll, with the keys of their messages."""
        results: list[tuple[int, Reply]] = [(key, NoReply("the message could not be sent")) for key in self._unsent]
        self._unsent = []
        if not self._pending:
            return results
        now = time.monotonic()
        for message_id, reply in _pull(self._grid, list(self._pending)):
            if message_id in self._pending:
                results.append((self._pending.pop(message_id)[0], reply))
        for message_id, (key, deadline) in list(self._pending.items()):
            if now >= deadline:
                del self._pending[message_id]
                results.append((key, NoReply(f"no reply within {self._timeout:g} s", silent=True)))
        return results


def poll_intervals() -> Iterator[float]:
    """Yield the seconds to sleep between polls, short at first and growing up to a limit."""
    interval = SHORTEST_POLL
    while True:
        yield interval
        interval = min(1.3 * interval, LONGEST_POLL)


def exchange(grid: Grid, messages: Sequence[Message], timeout: float) -> list[Reply]:
    """Send messages and wait for the replies; return them, or the reasons why there are none, in order."""
    results: dict[int, Reply] = {}
    pending = PendingMessages(grid, timeout)
    pending.send(dict(enumerate(messages)))
    deadline = time.monotonic() + timeout
    for interval in poll_intervals():
        results |= dict(pending.poll())
        if not pending:
            break
        time.sleep(max(0.0, min(interval, deadline - time.monotonic())))
    return [results[place] for place in range(len(messages))]


def _pull(grid: Grid, ids: list[str]) -> Iterator[tuple[str, Reply]]:
    """Yield the replies so far with the ids of their messages; an unreadable reply does not affect the rest."""
    try:
        for reply in grid.pull_messages(ids):
            yield reply.metadata.reply_to_message_id, _failure(reply) if reply.has_error() else reply
    except Exception as error:
        if len(ids) == 1:
            logger.warning("a reply could not be read: %s", sanitize(repr(error)))
            yield ids[0], NoReply("its reply could not be read")
            return
        for message_id in ids:
            yield from _pull(grid, [message_id])


def _failure(reply: Message) -> NoReply:
    """Return why a client failed: the last line of a traceback, else the whole reason."""
    reason = (reply.error.reason or "no reason given").strip()
    errors = [line for line in reason.splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
    text = sanitize(errors[-1] if errors and reason.startswith("Traceback") else reason)
    return NoReply(f"error {reply.error.code}: {text}", permanent=reply.error.code == CLIENT_RAISED)
