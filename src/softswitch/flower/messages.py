"""Messages between server and clients: their names, their encoding, and the validation of what arrives.

Arrays are sent in NumPy's format and never pickled. Names, shapes, dtypes, sizes and finiteness are checked before use.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

PROTOCOL = 2
"""Version of the protocol between server and clients. It increases with every incompatible change."""
REGISTER, REPORT, UPDATE, UNMASK = "query.register", "query.report", "train.update", "query.unmask"
EVALUATE, CERTIFY = "evaluate.values", "evaluate.certify"
"""The types of messages."""
PARAMS, SETTINGS, DECISION, REGISTRATION = "params", "settings", "decision", "registration"
VALUES, DIRECTION, INTERVALS, REFUSAL, PRIVACY = "values", "direction", "intervals", "refusal", "privacy"
PREVIOUS, PREVIOUS_VALUES = "previous", "previous_values"
"""The names of the records in a message. ``PREVIOUS`` is also the setting with the digest of w_{k−1}."""
MAX_HEADER_BYTES = 4096
MAX_TEXT_LENGTH = 200

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


def array_specs(arrays: Mapping[str, Any]) -> dict[str, ArraySpec]:
    """Return the shape and dtype of each array."""
    return {name: ArraySpec(tuple(array.shape), str(array.dtype)) for name, array in arrays.items()}


def to_record(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Return named arrays as a Flower record."""
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in arrays.items()})


def from_record(record: Any) -> Arrays:
    """Return the arrays of a record from the server as read-only views, or raise ``InvalidMessageError``."""
    if not isinstance(record, ArrayRecord):
        raise InvalidMessageError("it contains no parameters")
    try:
        arrays = {name: _read_array(array.data) for name, array in record.items()}
        finite = all(np.isfinite(array).all() for array in arrays.values())
    except Exception as error:
        raise InvalidMessageError(f"its parameters are not arrays in NumPy's format: {sanitize(str(error))}") from error
    if not finite:
        raise InvalidMessageError("its parameters contain NaN or infinity")
    return arrays


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    size: int


def _read_array(data: bytes) -> np.ndarray:
    header = _read_header(data)
    order: Any = "F" if header.fortran else "C"
    return np.frombuffer(data, header.dtype, math.prod(header.shape), header.size).reshape(header.shape, order=order)


def _read_header(data: bytes) -> _Header:
    start = 10 if data[6:7] == b"\x01" else 12  # the length of the header has two bytes in version 1, then four
    end = start + int.from_bytes(data[8:start], "little")
    if end > MAX_HEADER_BYTES:
        raise ValueError(f"its header has {end:,} bytes, but at most {MAX_HEADER_BYTES:,} are accepted")
    return _parse_header(data[:end])


@lru_cache(maxsize=1024)  # the same arrays arrive in every round
def _parse_header(header: bytes) -> _Header:
    stream = io.BytesIO(header)
    is_first_version = np.lib.format.read_magic(stream) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if is_first_version else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it contains Python objects")
    return _Header(shape, fortran, dtype, stream.tell())


def parse_arrays(record: Any, expected: Mapping[str, ArraySpec], largest: float) -> Arrays:
    """Return a client's arrays, or raise ``InvalidMessageError``.

    The names, shapes and dtypes must be the expected ones, and no entry may exceed ``largest`` in absolute value.
    """
    if not isinstance(record, ArrayRecord):
        raise InvalidMessageError("it contains no arrays")
    if set(record) != set(expected):
        difference = ", ".join(sorted(set(record) ^ set(expected))[:5])
        raise InvalidMessageError(f"its arrays are not those of the model; missing or unknown: {sanitize(difference)}")
    return {name: _parse_array(name, record[name], spec, largest) for name, spec in expected.items()}


def _parse_array(name: str, sent: Array, expected: ArraySpec, largest: float) -> np.ndarray:
    max_bytes = math.prod(expected.shape) * np.dtype(expected.dtype).itemsize + MAX_HEADER_BYTES
    if len(sent.data) > max_bytes:
        raise InvalidMessageError(f"{name!r} has {len(sent.data):,} bytes, but at most {max_bytes:,} are accepted")
    try:  # the header is checked first, because it may claim a huge array
        header = _read_header(sent.data)
        if header.shape != expected.shape or str(header.dtype) != expected.dtype:
            raise InvalidMessageError(
                f"{name!r} must be {expected.dtype} of shape {expected.shape}, but is {header.dtype} of shape "
                f"{header.shape}"
            )
        array = _read_array(sent.data)
    except InvalidMessageError:
        raise
    except Exception as error:
        raise InvalidMessageError(f"{name!r} is not an array in NumPy's format: {error}") from error
    if not np.isfinite(array).all():
        raise InvalidMessageError(f"{name!r} contains NaN or infinity")
    if array.size and not np.abs(array).max() <= largest:
        raise InvalidMessageError(
            f"{name!r} has entries up to {np.abs(array).max():g}, but at most {largest:g} is accepted"
        )
    return array


def encode_values(values: Values) -> MetricRecord:
    """Return a client's values as a record; a single constraint is sent as a number, several as a list."""
    constraint = [float(value) for value in values.constraint]
    record = MetricRecord(
        {
            "objective": float(values.objective),
            "constraint": constraint[0] if len(constraint) == 1 else constraint,
        }
    )
    if values.statistics is not None:
        record["statistics"] = [float(value) for value in values.statistics]
    return record


def parse_values(content: RecordDict, constraints: int, statistics: bool, largest: float, name: str = VALUES) -> Values:
    """Return a client's values, or raise ``InvalidMessageError``.

    No value may exceed ``largest`` in absolute value. −∞ means that the client has no such function.
    """
    record = content.get(name)
    if not isinstance(record, MetricRecord):
        raise InvalidMessageError("it contains no report")
    objective, constraint = read_numbers(record, "objective"), read_numbers(record, "constraint")
    if len(objective) != 1 or len(constraint) != constraints:
        raise InvalidMessageError(
            f"it must report 1 objective and {constraints} constraints, but reports {len(objective)} and "
            f"{len(constraint)}"
        )
    for value in (*objective, *constraint):
        if not (abs(value) <= largest or value == -math.inf):
            raise InvalidMessageError(f"it reports {value}, but a number of at most {largest:g} in size is accepted")
    sums = read_numbers(record, "statistics") if statistics else None
    if sums is not None and not all(abs(value) <= largest for value in sums):
        raise InvalidMessageError(f"its statistics must be finite and at most {largest:g} in size")
    return Values(objective[0], constraint, sums)


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


def get_config(content: RecordDict, name: str) -> ConfigRecord:
    """Return the record of settings with this name, or raise ``InvalidMessageError``."""
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise InvalidMessageError(f"it contains no {name}")
    return record


def read_numbers(record: Mapping[str, Any], name: str) -> list[float]:
    """Return a number, or a list of numbers, as a list."""
    value = record.get(name)
    if isinstance(value, int | float):
        return [float(value)]
    if not isinstance(value, list) or not all(isinstance(entry, int | float) for entry in value):
        raise InvalidMessageError(f"its {name} must be a number or a list of numbers, but is {value!r:.80}")
    return [float(entry) for entry in value]


def read_text(record: Mapping[str, Any], name: str) -> str:
    """Return a short printable text."""
    value = record.get(name)
    if not isinstance(value, str) or not 0 < len(value.strip()) <= MAX_TEXT_LENGTH or not value.isprintable():
        raise InvalidMessageError(
            f"its {name} must be a text of 1 to {MAX_TEXT_LENGTH} characters, but is {value!r:.80}"
        )
    return value


def read_float(record: Mapping[str, Any], name: str) -> float:
    """Return a finite number."""
    value = record.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise InvalidMessageError(f"its {name} must be a finite number, but is {value!r:.80}")
    return float(value)


def read_bool(record: Mapping[str, Any], name: str) -> bool:
    """Return True or False."""
    value = record.get(name)
    if not isinstance(value, bool):
        raise InvalidMessageError(f"its {name} must be True or False, but is {value!r:.80}")
    return value


def read_int(record: Mapping[str, Any], name: str, largest: int) -> int:
    """Return an integer from 0 to ``largest``."""
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise InvalidMessageError(f"its {name} must be an integer from 0 to {largest:,}, but is {value!r:.80}")
    return value
