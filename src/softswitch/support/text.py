"""Tables and numbers as text: numbers as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.console import Console, RenderableType

MISSING = "—"
"""What is shown where there is no number."""
SMALLEST = 1e-6
"""Numbers nearer to 0 than this are not written out."""
LONG = re.compile(r"(?<![\w.])-?\d+\.\d{5,}(?:e[+-]?\d+)?(?![\w.])")
"""A number with more digits than anyone reads."""


def format_number(value: float | None, digits: int = 4) -> str:
    """A number of so many digits, without a power of ten, with commas in thousands; a dash where it is not finite."""
    if value is None or not math.isfinite(value):
        return MISSING
    if abs(value) >= 10 ** (digits - 1) or value == 0:
        return f"{value:,.0f}" if round(value) else "0"
    if abs(value) < SMALLEST:
        return f"<{SMALLEST:.6f}" if value > 0 else f">-{SMALLEST:.6f}"
    written = f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    return written.rstrip("0").rstrip(".") if "." in written else written


def format_value(value: float) -> str:
    """A number for a sentence: as ``number``, but what is not finite is told as what it is, inf or nan."""
    return format_number(value) if math.isfinite(value) else f"{value:g}"


def format_percent(value: float | None) -> str:
    """A share in percent: 5%, 4.76%, 0.035%, 33.3%; a dash where it is not finite."""
    if value is None or not math.isfinite(value):
        return MISSING
    percent = 100 * value
    size = abs(percent)
    if size < 1:
        return f"{format_number(percent, 2)}%"
    written = f"{percent:,.{1 if 10 <= size <= 99 else 2}f}"
    return f"{written.rstrip('0').rstrip('.')}%"


def format_duration(seconds: float) -> str:
    """How long something took: 0.4 s, 40 s, 2 min 5 s, 1 h 5 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def shorten_numbers(text: str) -> str:
    """The same text with every number of many digits cut to four: a rule's settings, for people."""

    def cut(found: re.Match[str]) -> str:
        value = float(found[0])
        return format_number(value) if abs(value) >= SMALLEST else f"{value:.4g}"

    return LONG.sub(cut, text)


def render_text(*parts: RenderableType, width: int = 120) -> str:
    """What the parts look like printed, one below the other."""
    console = Console(width=width)
    with console.capture() as capture:
        for part in parts:
            console.print(part, highlight=False)
    return capture.get()


def join_first(words: Sequence[str], most: int = 5) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def format_mean_std(values: Sequence[float] | np.ndarray) -> str:
    """Mean ± standard deviation, for a table."""
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def format_bytes(many: int) -> str:
    """So many bytes as people write them: 900 bytes, 3.2 MB."""
    if many < 1000:
        return f"{many} bytes"
    for unit, size in (("kB", 1e3), ("MB", 1e6), ("GB", 1e9)):
        if many < 999.5 * size:
            return f"{many / size:.3g} {unit}"
    return f"{many / 1e12:,.3g} TB"


_BEGINS = "=+\\-@\t\r\n＝＋－＠"
_FORMULA = re.compile(f"'*[{_BEGINS}]")
"""Spreadsheets compute what begins so; apostrophes before it are counted in, so that all can be undone."""
_DEFUSED = re.compile(f"'+[{_BEGINS}]")
_SIGN = r"[€$£¥%‰]|EUR|USD|GBP|CHF"
_NUMBER = re.compile(
    rf"[-+]\s?(?:{_SIGN})?\s?(?:\d[\d.,'  ]*|[.,]\d+)(?:[eE][-+]?\d+)?\s?(?:{_SIGN})?"
    r"|[-+]+|[-+]?(?:nan|inf|infinity)|-1\.#(?:IND|QNAN)",
    re.IGNORECASE,
)
"""A number with its sign, or a mark of an empty cell: neither does anything."""


def escape_cell(cell: Any) -> Any:
    """The cell as a CSV file should have it: text that spreadsheets would compute gets an apostrophe before it.

    Numbers stay numbers, also those written as text. ``restored`` undoes it exactly.
    """
    if isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def unescape_cell(cell: Any) -> Any:
    """What ``defused`` was given."""
    if isinstance(cell, str) and _DEFUSED.match(cell) and not _NUMBER.fullmatch(cell[1:]):
        return cell[1:]
    return cell


def escape_row(cells: Iterable[Any]) -> list[Any]:
    """A line of a CSV file, cell by cell."""
    return [escape_cell(cell) for cell in cells]
