"""What cells of text say: which of them are empty, and which columns of text are columns of numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

EMPTY = (
    *("", "?", "-", "--", "–", "—", ".", "..", "NA", "<NA>", "N/A", "n/a", "N.A.", "n.a.", "#N/A", "#N/A N/A", "#NA"),
    *("#NV", "NULL", "Null", "null", "NaN", "nan", "NaT", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN"),
    *("-1.#QNAN", "\\N"),
)
"""Cells that count as empty."""
NONE = ("None", "none")
"""Cells that count as empty where all others are numbers; among words they are one."""
SIGNS = "%|‰|€|\\$|£|¥|EUR|USD|GBP|CHF"
"""What may stand before or behind a number, the same in all of a column."""
FEW = 50
"""So many values are looked at before a whole column is."""


def is_text(values: pd.Series) -> bool:
    """Whether a column holds neither numbers nor truth values nor times."""
    kinds = pd.api.types
    return not (kinds.is_numeric_dtype(values) or kinds.is_bool_dtype(values) or kinds.is_datetime64_any_dtype(values))


def tidy(values: pd.Series, decimal: str = ".", empty: Sequence[str] = ()) -> pd.Series:
    """A column without blanks around its words, and as numbers where it holds such; ``empty``: more empty cells."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.astype(values.dtype.categories.dtype)
    if not is_text(values):
        return values
    codes, kept = pd.factorize(values)
    if len(kept) and all(isinstance(value, Decimal) for value in kept):
        return values.astype(float)
    marks = frozenset((*EMPTY, *empty))
    instead = [_bare(value, marks) for value in kept]
    if any(one is not other for one, other in zip(instead, kept, strict=True)):
        told = np.array([*instead, None], dtype=object)[codes]
        values = pd.Series(told, index=values.index, name=values.name).infer_objects()
    numbers = as_numbers(values.where(~values.isin(NONE)), decimal)
    return values if numbers is None else numbers


def _bare(value: object, marks: frozenset[str]) -> object:
    if not isinstance(value, str):
        return value
    bare = value.strip()
    return None if bare in marks else value if bare == value else bare


def as_numbers(values: pd.Series, decimal: str = ".") -> pd.Series | None:
    """The numbers that a column of text stands for; None where one of its cells is no number.

    Read are 1234.5, 1,234.5, 1 234.5 and 1'234.5, with a comma as decimal sign 1.234,5 as well, all with a sign such as
    % or € that all cells have. A column may use the other decimal sign than its file, but not both.
    """
    codes, kept = pd.factorize(values)
    if not len(kept) or not all(isinstance(value, str) for value in kept[:FEW]):
        return None
    for sign in (decimal, "," if decimal == "." else "."):
        if (pattern := _pattern(kept[:FEW], sign)) is None:
            continue
        found = [re.fullmatch(pattern, str(value)) for value in kept]
        if not all(found) or len({(one["before"], one["behind"]) for one in found if one}) != 1:
            continue
        bare = [
            re.sub(r"[^\d.eE+-]", "", one["number"].replace("−", "-").translate(_READ[sign])) for one in found if one
        ]
        numbers = np.array([*map(float, bare), np.nan])[codes]
        return pd.Series(numbers, index=values.index, name=values.name)
    return None


_READ: dict[str, dict[int, Any]] = {".": str.maketrans({",": None}), ",": str.maketrans({".": None, ",": "."})}


def _pattern(values: pd.Index, decimal: str) -> str | None:
    """The pattern that all of these follow: plain numbers, or those with one sign between thousands."""
    point = re.escape(decimal)
    for gap in ("", r"\." if decimal == "," else ",", "[   ]", "['’]"):
        whole = rf"(\d+|\d{{1,3}}({gap}\d{{3}})+)" if gap else r"\d*"
        number = rf"(?P<number>[-+−]?{whole}({point}\d+)?([eE][-+]?\d+)?)"
        pattern = rf"(?P<before>({SIGNS})?)\s*(?=[-+−]?{point}?\d){number}\s*(?P<behind>({SIGNS})?)"
        if all(re.fullmatch(pattern, str(value)) for value in values):
            return pattern
    return None
