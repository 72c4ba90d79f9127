"""Formatting of numbers and tables as text, and escaping of CSV cells."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType

if TYPE_CHECKING:
    import numpy as np

MISSING = "—"  # text for a number that is missing or not finite
SMALLEST = 1e-6  # nonzero numbers closer to 0 are written as <0.000001
_LONG_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{5,}(?:e[+-]?\d+)?(?![\w.])")


def format_number(value: float | None, digits: int = 4) -> str:
    """Format a number to about ``digits`` significant digits, no exponent; ``MISSING`` for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return MISSING
    if abs(value) >= 10 ** (digits - 1) or value == 0:
        return f"{value:,.0f}" if round(value) else "0"
    if abs(value) < SMALLEST:
        return f"<{SMALLEST:.6f}" if value > 0 else f">-{SMALLEST:.6f}"
    text = f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_value(value: float) -> str:
    """Format a number as ``format_number`` does, but NaN and infinity as "nan", "inf" and "-inf"."""
    return format_number(value) if math.isfinite(value) else f"{value:g}"


def format_percent(value: float | None) -> str:
    """Format a fraction (0.05) as a percentage: 5%, 4.76%, 0.035%, 33.3%; ``MISSING`` for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return MISSING
    percent = 100 * value
    if abs(percent) < 1:
        return f"{format_number(percent, 2)}%"
    text = f"{percent:,.{1 if 10 <= abs(percent) <= 99 else 2}f}"
    return f"{text.rstrip('0').rstrip('.')}%"


def format_duration(seconds: float) -> str:
    """Format a duration in seconds: 0.4 s, 40 s, 2 min 5 s, 1 h 5 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    large, small, units = (*divmod(whole, 60), "min s") if whole < 3600 else (*divmod(round(seconds / 60), 60), "h min")
    parts = [f"{count} {unit}" for count, unit in zip((large, small), units.split(), strict=True) if count]
    return " ".join(parts)


def shorten_numbers(text: str) -> str:
    """Round the numbers with five or more decimals in a text to four significant digits."""

    def shorten(match: re.Match[str]) -> str:
        value = float(match[0])
        return format_number(value) if abs(value) >= SMALLEST else f"{value:.4g}"

    return _LONG_NUMBER.sub(shorten, text)


def render_text(*parts: RenderableType, width: int = 120) -> str:
    """Return what rich prints for some renderables on a console that is ``width`` characters wide."""
    console = Console(width=width)
    with console.capture() as capture:
        for part in parts:
            console.print(part, highlight=False)
    return capture.get()


def join_first(words: Sequence[str], most: int = 5) -> str:
    """Join the first ``most`` words with commas, and append the number of further ones: "a, b and 3 more"."""
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def format_mean_std(values: Sequence[float] | np.ndarray) -> str:
    """Format values as "mean ± sample standard deviation", with three decimals; a single value as its mean."""
    import numpy as np  # not above, because help texts of the command line need this module

    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


_FIRST = "=+\\-@\t\r\n＝＋－＠"  # spreadsheets evaluate cells that begin with one of these
_FORMULA = re.compile(f"'*[{_FIRST}]")  # leading apostrophes are escaped too, so that unescaping is exact
_ESCAPED = re.compile(f"'+[{_FIRST}]")
_SIGN = r"[€$£¥%‰]|EUR|USD|GBP|CHF"
_NUMBER = re.compile(
    rf"[-+]\s?(?:{_SIGN})?\s?(?:\d[\d.,'  ]*|[.,]\d+)(?:[eE][-+]?\d+)?\s?(?:{_SIGN})?"
    r"|[-+]+|[-+]?(?:nan|inf|infinity)|-1\.#(?:IND|QNAN)",
    re.IGNORECASE,
)
"""Pattern of a signed number, or of a marker of an empty cell. Neither is escaped."""


def escape_cell(cell: Any) -> Any:
    """Prepend an apostrophe to a CSV cell that a spreadsheet would evaluate; return other cells unchanged."""
    is_formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def unescape_cell(cell: Any) -> Any:
    """Invert ``escape_cell``: remove the apostrophe that it prepends."""
    is_escaped = isinstance(cell, str) and _ESCAPED.match(cell) and not _NUMBER.fullmatch(cell[1:])
    return cell[1:] if is_escaped else cell


def escape_row(cells: Iterable[Any]) -> list[Any]:
    """Return the cells of a CSV row, each escaped by ``escape_cell``."""
    return [escape_cell(cell) for cell in cells]
