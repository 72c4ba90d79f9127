"""Checks of the numbers that clients report: values within their range, and intervals for the certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from flwr.app import MetricRecord, RecordDict

from softswitch.flower import messages as wire
from softswitch.flower.messages import require
from softswitch.problem.ranges import Range, endpoints
from softswitch.results.certificate import Interval, IntervalMethod

SLACK = 1e-5  # tolerance for a client's numbers, in units of their range
METHODS = list(IntervalMethod)
COLUMNS = tuple(field.name for field in fields(Interval))


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
    record: Any = content.get(wire.INTERVALS)
    require(isinstance(record, MetricRecord), "there are no intervals")
    columns = [wire.read_numbers(record, name) for name in COLUMNS]
    require({len(column) for column in columns} == {len(ranges)}, f"there are not {len(ranges)} intervals")
    intervals = [_parse_interval(dict(zip(COLUMNS, row, strict=True))) for row in zip(*columns, strict=True)]
    for interval, bounds in zip(intervals, ranges, strict=True):
        rows, limits = interval.rows, (interval.lower, interval.upper)
        problem = f"its interval uses {rows:,} rows, but it reported {held_out_rows:,} held-out rows"
        require(rows <= held_out_rows, problem)
        numbers = (interval.estimate, *limits, interval.marginal_upper)
        wire.check_size("its interval", [value for value in numbers if math.isfinite(value)])
        if not rows or math.isnan(interval.estimate):
            has_none = interval.meets_at >= 1 and interval.violates_at >= 1
            require(has_none, "it reports p-values of a function without an estimate")
            continue
        is_normal = interval.method is IntervalMethod.NORMAL  # its limits may be outside the range
        for value in (interval.estimate,) if is_normal else (interval.estimate, *limits):
            check_in_range(value, bounds)
    return intervals


def _parse_interval(row: dict[str, Any]) -> Interval:
    """Return an interval, or raise if its numbers are inconsistent."""
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
