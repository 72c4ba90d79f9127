"""Messages between server and clients: their names, their encoding, and the validation of what arrives.

Arrays are sent in NumPy's format and never pickled. Names, shapes, dtypes, sizes and finiteness are checked before use.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

PROTOCOL = 3
"""Version of the protocol between server and clients. It increases with every incompatible change."""
REGISTER, REPORT, UPDATE, UNMASK = "query.register", "query.report", "train.update", "query.unmask"
EVALUATE, CERTIFY, DERIVATIVES = "evaluate.values", "evaluate.certify", "query.derivatives"  # the types of messages
PARAMS, SETTINGS, DECISION, REGISTRATION = "params", "settings", "decision", "registration"
VALUES, DIRECTION, INTERVALS, REFUSAL, PRIVACY = "values", "direction", "intervals", "refusal", "privacy"
PREVIOUS, PREVIOUS_VALUES, MATRICES = "previous", "previous_values", "derivatives"
"""The names of the records in a message. ``PREVIOUS`` is also the setting with the digest of w_{k−1}."""
MAX_HEADER_BYTES, MAX_TEXT_LENGTH, MAX_INT = 4096, 200, 2**63 - 1
LARGEST_NUMBER, LARGEST_ROWS = 1e12, 10**8
"""Reports and directions with a larger absolute value are rejected, and clients with more rows are turned away."""

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
    require(not dtype.hasobject, "it contains Python objects")
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
