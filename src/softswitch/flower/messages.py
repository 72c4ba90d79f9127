"""What goes over the network: six kinds of messages, and arrays that are looked at before they are believed.

Arrays travel as NumPy's own format, never pickled. Whatever a client sends is checked against what was expected (names,
shapes, dtypes, sizes, finite numbers) before anything is made of it.
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
"""The version of what server and clients say to each other: counted up where a new one cannot talk to an old one."""
HELLO, REPORT, UPDATE = "query.hello", "query.report", "train.update"
JUDGE, CERTIFY = "evaluate.judge", "evaluate.certify"
UNMASK = "query.unmask"
PARAMS, SETTINGS, DECISION, ABOUT = "params", "settings", "decision", "about"
VALUES, DIRECTION, INTERVALS, REFUSED, SPENT = "values", "direction", "intervals", "refused", "spent"
"""The names of the records in a message."""
HEADER_BYTES = 4096
"""The most that an array's own description may take."""
LONGEST_WORD = 200
"""A client's name is at most so long."""

Arrays = dict[str, np.ndarray]


class Unacceptable(ValueError):  # noqa: N818 (what a client sent is, not what we did)
    """What a client sent cannot be used; the text says why."""


class Shape(NamedTuple):
    """What an array must look like."""

    shape: tuple[int, ...]
    dtype: str


class Values(NamedTuple):
    """What a client reports.

    Attributes:
        objective: f_i; −∞ where it has none.
        constraint: g_i, one number a constraint.
        statistics: the additive statistics of a pooled constraint, where it is one.
    """

    objective: float
    constraint: list[float]
    statistics: list[float] | None = None


def shapes(arrays: Mapping[str, Any]) -> dict[str, Shape]:
    """What arrays like these look like."""
    return {name: Shape(tuple(array.shape), str(array.dtype)) for name, array in arrays.items()}


def to_record(arrays: Mapping[str, Any]) -> ArrayRecord:
    """Arrays by their names, to be sent."""
    return ArrayRecord({name: Array(np.asarray(array, order="C")) for name, array in arrays.items()})


def from_record(record: Any) -> Arrays:
    """Arrays by their names, as they came from the server, or raise; not to be written to."""
    if not isinstance(record, ArrayRecord):
        raise Unacceptable("there are no parameters")
    try:
        found = {name: _read(array.data) for name, array in record.items()}
        finite = all(np.isfinite(array).all() for array in found.values())
    except Exception as error:
        raise Unacceptable(f"its parameters are not arrays in NumPy's format: {said(str(error))}") from error
    if not finite:
        raise Unacceptable("its parameters hold NaN or infinity")
    return found


def settings_of(content: RecordDict, name: str) -> ConfigRecord:
    """A record of settings, or raise."""
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise Unacceptable(f"there are no {name}")
    return record


def _read(data: bytes) -> np.ndarray:
    layout = _layout(_header(data))
    order: Any = "F" if layout.fortran else "C"
    flat = np.frombuffer(data, layout.dtype, math.prod(layout.shape), layout.offset)
    return flat.reshape(layout.shape, order=order)


class _Layout(NamedTuple):
    """What an array says of itself before its numbers begin."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype
    offset: int


def _header(data: bytes) -> bytes:
    """An array's description: everything before its numbers. Its length is told in two bytes, or in four."""
    wide = data[6:7] != b"\x01"
    first = 12 if wide else 10
    end = first + int.from_bytes(data[8:first], "little")
    if end > HEADER_BYTES:
        raise ValueError(f"its description has {end:,} bytes, where at most {HEADER_BYTES:,} are expected")
    return data[:end]


@lru_cache(maxsize=1024)
def _layout(header: bytes) -> _Layout:
    """A description, read; the same arrays come round after round."""
    stream = io.BytesIO(header)
    wide = np.lib.format.read_magic(stream) != (1, 0)
    read = np.lib.format.read_array_header_2_0 if wide else np.lib.format.read_array_header_1_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return _Layout(shape, fortran, dtype, stream.tell())


def checked_arrays(record: Any, expected: Mapping[str, Shape], largest: float) -> Arrays:
    """Arrays that a client sent, or raise: exactly those expected, finite and not absurd."""
    if not isinstance(record, ArrayRecord):
        raise Unacceptable("there are no arrays")
    if set(record) != set(expected):
        other = ", ".join(sorted(set(record) ^ set(expected))[:5])
        raise Unacceptable(f"its arrays are not those of the model; those that differ are {said(other)}")
    return {name: _checked_array(name, record[name], expected[name], largest) for name in expected}


def _checked_array(name: str, sent: Array, expected: Shape, largest: float) -> np.ndarray:
    entries = math.prod(expected.shape)
    most = entries * np.dtype(expected.dtype).itemsize + HEADER_BYTES
    if len(sent.data) > most:
        raise Unacceptable(f"{name!r} has {len(sent.data):,} bytes, where at most {most:,} are expected")
    try:  # the description first: one that claims a huge array must not make us reserve it
        layout = _layout(_header(sent.data))
        if layout.shape != expected.shape or str(layout.dtype) != expected.dtype:
            raise Unacceptable(
                f"{name!r} is {layout.dtype} of shape {layout.shape}, where {expected.dtype} of shape "
                f"{expected.shape} is expected"
            )
        array = _read(sent.data)
    except Unacceptable:
        raise
    except Exception as error:
        raise Unacceptable(f"{name!r} is not an array in NumPy's format: {error}") from error
    if not np.isfinite(array).all():
        raise Unacceptable(f"{name!r} holds NaN or infinity")
    if array.size and not np.abs(array).max() <= largest:
        raise Unacceptable(f"{name!r} holds numbers of up to {np.abs(array).max():g}, where {largest:g} is the most")
    return array


def values_record(values: Values) -> MetricRecord:
    """A client's report, to be sent. Two numbers, where it has one constraint."""
    constraint = [float(value) for value in values.constraint]
    told: dict[str, Any] = {
        "objective": float(values.objective),
        "constraint": constraint[0] if len(constraint) == 1 else constraint,
    }
    if values.statistics is not None:
        told["statistics"] = [float(value) for value in values.statistics]
    return MetricRecord(told)


def checked_values(
    content: RecordDict, constraints: int, statistics: bool, largest: float, name: str = VALUES
) -> Values:
    """A client's report, or raise: numbers that are finite and not absurd, or −∞ for what it does not have."""
    told = content.get(name)
    if not isinstance(told, MetricRecord):
        raise Unacceptable("there is no report")
    objective, constraint = numbers(told, "objective"), numbers(told, "constraint")
    if len(objective) != 1 or len(constraint) != constraints:
        raise Unacceptable(
            f"it has {len(objective)} objectives and {len(constraint)} constraints, where 1 and {constraints} are "
            "expected"
        )
    for value in (*objective, *constraint):
        if not (abs(value) <= largest or value == -math.inf):
            raise Unacceptable(f"it reports {value}, where a number of at most {largest:g} in size is expected")
    summed = numbers(told, "statistics") if statistics else None
    if summed is not None and not all(abs(value) <= largest for value in summed):
        raise Unacceptable("its statistics are not finite, or absurd")
    return Values(objective[0], constraint, summed)


def numbers(record: Mapping[str, Any], name: str) -> list[float]:
    """One number, or a list of them."""
    value = record.get(name)
    if isinstance(value, int | float):
        return [float(value)]
    if not isinstance(value, list) or not all(isinstance(one, int | float) for one in value):
        raise Unacceptable(f"it does not tell its {name}")
    return [float(one) for one in value]


def answer(message: Message, **records: Any) -> Message:
    """A reply of these records."""
    return Message(RecordDict(records), reply_to=message)


def refusal(message: Message, why: str) -> Message:
    """A reply that says no."""
    return answer(message, **{REFUSED: ConfigRecord({"why": why})})


def said(text: str) -> str:
    """What a client wrote, fit for a log: short, on one line, without anything that a terminal would obey."""
    return " ".join(text.split()).encode("unicode_escape").decode()[:LONGEST_WORD]


def refused(content: RecordDict) -> str | None:
    """Why a client says no; None where it does not."""
    told = content.get(REFUSED)
    return said(str(told.get("why", ""))) if isinstance(told, ConfigRecord) else None


def word(record: Mapping[str, Any], name: str) -> str:
    """A short text that a client sent."""
    value = record.get(name)
    if not isinstance(value, str) or not 0 < len(value.strip()) <= LONGEST_WORD or not value.isprintable():
        raise Unacceptable(f"its {name} must be a text of 1 to {LONGEST_WORD} characters, but is {value!r:.80}")
    return value


def real(record: Mapping[str, Any], name: str) -> float:
    """A finite number."""
    value = record.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise Unacceptable(f"its {name} must be a finite number, but is {value!r:.80}")
    return float(value)


def truth(record: Mapping[str, Any], name: str) -> bool:
    """True or False."""
    value = record.get(name)
    if not isinstance(value, bool):
        raise Unacceptable(f"its {name} must be True or False, but is {value!r:.80}")
    return value


def whole(record: Mapping[str, Any], name: str, most: int) -> int:
    """A whole number from 0 to ``most`` that a client sent."""
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise Unacceptable(f"its {name} must be a whole number from 0 to {most:,}, but is {value!r:.80}")
    return value
