"""Inspection of a table for ``softswitch init``: content of columns, and proposals for label, client and the like."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from softswitch.problem.choices import BINARY, MULTICLASS
from softswitch.problem.choices import NUMBER as NUMBER_LABEL
from softswitch.support.checks import check_choice
from softswitch.tables.cells import is_text, parse_cells, parse_datetimes, same_value
from softswitch.tables.features import MAX_LEVELS, MIN_LEVEL_ROWS, to_categories

_FILE = Path(__file__).with_name("hints.toml")
_HINTS = {name: frozenset(text.split()) for name, text in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()}
IDENTIFIER_HINTS, CODE_HINTS, NAME_SUFFIXES = _HINTS["identifier"], _HINTS["code"], _HINTS["suffix"]
LABEL_HINTS, CLIENT_HINTS = (_HINTS["label"], _HINTS["weak_label"]), (_HINTS["client"], _HINTS["weak_client"])
POSITIVE_VALUES, NEGATIVE_VALUES = _HINTS["positive"], _HINTS["negative"] | {"on time"}
NUMBER, INTEGER, CATEGORY, TWO_VALUES, DATETIME = "number", "whole number", "category", "two values", "date or time"
CODE = "category code"  # few distinct integers that are read as categories
IDENTIFIER, CONSTANT, EMPTY = "identifier", "constant", "empty"
UNUSABLE = (IDENTIFIER, CONSTANT, EMPTY)  # content types of columns that should be ignored
IDENTIFIER_SHARE = 0.95  # smallest share of distinct values of a text column that is an identifier
MIN_ROWS = 20  # smallest number of non-empty cells from which identifiers and non-numeric cells are detected
NUMBERS_SHARE = 0.9  # smallest share of numbers in a numeric column that was read as text
MAX_NON_NUMERIC = 3  # largest number of distinct non-numeric cells of such a column
MAX_CODES = 10  # largest number of distinct integers that are taken as codes of classes
MAX_CATEGORY_CODES = 100  # largest number of distinct integers that are read as categories because of their name
MIN_CODE_ROWS = 10  # smallest mean number of rows of such an integer
CONSTANT_SHARE = 0.99  # smallest share of rows with their client's most frequent value in a column of the client
LEAKAGE = 0.98  # a column with a larger association may be a copy of the label, or known only after it
MAX_SAMPLE = 20_000  # largest number of rows from which an association is computed; others are not used
MIN_CLASS_ROWS = 10  # smallest number of rows of each class for an association
MEASURES = {BINARY: "AUC", MULTICLASS: "mean recall", NUMBER_LABEL: "rank correlation"}  # associations by label type
DUPLICATES_SHARE = 0.01  # largest share of duplicate rows without a remark
MIN_CLIENT_ROWS = 3  # smallest mean number of rows per client
CLEAR_CHOICES = ((3.0, 1.0), (2.0, 2.0))  # points of a clear choice, and its lead over the next candidate


@dataclass(frozen=True)
class ColumnSummary:
    """Summary of a column's content."""

    name: str
    content: str  # content type, such as NUMBER or IDENTIFIER
    empty: float  # share of empty cells, in [0, 1]
    values: int  # number of distinct values
    reason: str | None = None  # reason to ignore the column; None if there is none
    remark: str | None = None  # how ambiguous dates were read; None for other columns


def split_name(name: str) -> list[str]:
    """Return the words of a column's name in lower case: both "storeId" and "store_id" give ["store", "id"]."""
    separated = re.sub(r"([a-z])([A-Z])", r"\1 \2", str(name))
    return [word.lower() for word in re.split(r"[\W_]+", separated) if word]


def unit_words(name: str) -> list[str]:
    """Return the words of a column's name with clients' nouns separated: "hospitals121" gives ["hospital"]."""
    words: list[str] = []
    for word in split_name(name):
        stem, suffix = re.fullmatch(r"(.*?)(id|code|nr|no|num|s?[0-9]+)?", word).groups()  # type: ignore[union-attr]
        is_unit = suffix and any(stem in nouns for nouns in CLIENT_HINTS)
        words += [stem, *([] if suffix[-1].isdigit() else [suffix])] if is_unit else [word]
    return words


def inspect_column(values: pd.Series) -> ColumnSummary:
    """Summarise a column from its values and its name."""
    name, filled = str(values.name), values.dropna()
    empty, distinct = float(values.isna().mean()) if len(values) else 1.0, int(filled.nunique())
    if filled.empty:
        return ColumnSummary(name, EMPTY, empty, distinct, "empty in every row")
    if distinct == 1 and empty == 0:
        return ColumnSummary(name, CONSTANT, empty, distinct, f"{plain_value(filled.iloc[0])!r} in every row")
    content, remark = _content(values, filled, distinct)
    is_code = (unit_words(name) or [""])[-1] in CODE_HINTS and distinct <= MAX_CATEGORY_CODES
    if content == INTEGER and is_code and len(filled) >= MIN_CODE_ROWS * distinct:
        content = CODE
    reason = _identifier_reason(name, filled, distinct, content)
    if reason is not None:
        return ColumnSummary(name, IDENTIFIER, empty, distinct, reason)
    return ColumnSummary(name, content, empty, distinct, None, remark)


def _content(values: pd.Series, filled: pd.Series, distinct: int) -> tuple[str, str | None]:
    """Return the content type of a column, and for ambiguous dates a remark on the order of day and month."""
    if (parsed := parse_datetimes(values)) is not None:
        if parsed.order is None:
            return DATETIME, None
        other = parse_datetimes(values, "mdy")
        if other is not None and other.order != parsed.order:
            return DATETIME, "read with the day first, but all of its dates could also have the month first"
        return DATETIME, f"read with the {'day' if parsed.order == 'dmy' else 'month'} first"
    if distinct == 2:
        return TWO_VALUES, None
    if is_text(values):
        return CATEGORY, None
    return INTEGER if (filled % 1 == 0).all() else NUMBER, None


def non_numeric_cells(values: pd.Series) -> list[str]:
    """Return the rare strings in a text column that otherwise holds numbers or dates; an empty list for others."""
    if not is_text(values):
        return []
    filled = values.dropna().astype(str)
    rest = filled[~filled.str.fullmatch(r"[-+€$£]?\d[-\d.,' %€$£eE:/T]*")]
    is_rare = len(rest) <= (1 - NUMBERS_SHARE) * len(filled) and rest.nunique() <= MAX_NON_NUMERIC
    if len(filled) < MIN_ROWS or not is_rare:
        return []
    parsed = parse_cells(values.where(~values.isin(rest)))
    return [] if is_text(parsed) and parse_datetimes(parsed) is None else rest.unique().tolist()


def _identifier_reason(name: str, filled: pd.Series, distinct: int, content: str) -> str | None:
    """Return the reason why a column is an identifier, as text; None if it is not."""
    share = distinct / len(filled)
    is_named = name == "Unnamed: 0" or (unit_words(name) or [""])[-1] in IDENTIFIER_HINTS
    named = f"named as an identifier, with {distinct:,} values"
    if content == CATEGORY:
        if len(filled) >= MIN_ROWS and share >= IDENTIFIER_SHARE:
            return f"an identifier of rows: {share:.0%} of its values are distinct"
        if distinct > MAX_LEVELS and to_categories(filled).value_counts().iloc[0] < MIN_LEVEL_ROWS:
            return f"{distinct:,} distinct values, none in {MIN_LEVEL_ROWS} rows"
        return named if is_named and distinct > MAX_LEVELS else None
    if content in (INTEGER, CODE) and len(filled) >= MIN_ROWS:
        if share == 1 and (filled.is_monotonic_increasing or np.ptp(filled.to_numpy(float)) < 1.5 * len(filled)):
            return "a row counter"
        is_unit = content == INTEGER or len(split_name(name)) == 1 or _unit_points(name) > 0
        return named if is_named and is_unit and distinct > MAX_CODES else None
    return None


def infer_label_type(values: pd.Series) -> str:
    """Return the label type of a column: "binary", "multiclass" or "number"."""
    filled = values.dropna()
    distinct = filled.nunique()
    if distinct <= 2:
        return BINARY
    if is_text(filled) or pd.api.types.is_bool_dtype(filled):
        return MULTICLASS
    numbers = filled.astype(float)
    are_codes = (numbers % 1 == 0).all() and distinct <= MAX_CODES and np.ptp(numbers) < 2 * distinct
    return MULTICLASS if are_codes else NUMBER_LABEL


def plain_value(value: Any) -> Any:
    """Return a cell's value as a Python string, integer, float or boolean, for the settings file."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, str | int | float | bool) else str(value)


class Candidate(NamedTuple):
    """A column that may be the label or the client."""

    name: str
    points: float  # strength of the evidence; 3 is strong
    why: str  # the evidence, as text


POINTS = attrgetter("points")


def label_candidates(summaries: Sequence[ColumnSummary]) -> list[Candidate]:
    """Return the columns that may be the label, the most likely first."""
    usable = [one for one in summaries if one.content not in (*UNUSABLE, DATETIME)]
    binary = [one for one in usable if one.content == TWO_VALUES]
    candidates = []
    for one in usable:
        evidence = [
            (_name_points(one.name, LABEL_HINTS), "its name"),
            (1.0 * (one is summaries[-1]), "the last column"),
            (0.5 * (one is summaries[0]), "the first column"),
            (1.0 * (one in binary), "two values"),
            (1.0 * (binary == [one]), "the only column of two values"),
        ]
        points = sum(points for points, _ in evidence)
        points -= 2 if _name_points(one.name, CLIENT_HINTS) else 0
        candidates.append(Candidate(one.name, points, ", ".join(why for points, why in evidence if points)))
    return sorted(candidates, key=POINTS, reverse=True)


def client_candidates(summaries: Sequence[ColumnSummary], rows: int, label: str | None) -> list[Candidate]:
    """Return the columns that may identify the client, the most likely first; ``rows`` is the number of rows.

    Of columns with the same noun and number of values, such as "hospital" and "hospital_id", only one is a candidate.
    """
    candidates: dict[tuple[str, int], Candidate] = {}
    for one in summaries:
        is_identifier = one.reason is not None and one.reason.startswith("named as")
        is_usable = one.content in (CATEGORY, INTEGER, CODE, TWO_VALUES) or is_identifier
        if one.name == label or not is_usable or one.values < 2 or one.values * MIN_CLIENT_ROWS > rows:
            continue
        points = _name_points(one.name, CLIENT_HINTS) or max(0.0, _unit_points(one.name) - 1)
        why = ["its name"] * (points > 0) + [f"{one.values:,} values with {rows / one.values:,.0f} rows on average"]
        if one.content == TWO_VALUES or (one.content in (INTEGER, CODE) and not points):
            points -= 1
        elif one.content == CATEGORY:
            points += 0.5
        candidate = Candidate(one.name, points, ", ".join(why))
        noun = _noun(one.name) if _unit_points(one.name) else one.name
        candidates[noun, one.values] = max(candidates.get((noun, one.values), candidate), candidate, key=POINTS)
    return sorted(candidates.values(), key=POINTS, reverse=True)


def clear_choice(candidates: Sequence[Candidate]) -> str | None:
    """Return the name of the first candidate if it is a clear choice by ``CLEAR_CHOICES``; else None."""
    best, second, *_ = *(candidate.points for candidate in candidates), 0.0, 0.0
    is_clear = any(best >= points and best - second >= lead for points, lead in CLEAR_CHOICES)
    return candidates[0].name if is_clear else None


def _noun(name: str) -> str:
    """Return the last word of a column's name without suffixes: "hospital" for "hospital_id" or "hospitalid"."""
    words = _drop_suffixes(unit_words(name))
    return words[-1] if words else name


def _drop_suffixes(words: list[str]) -> list[str]:
    while len(words) > 1 and words[-1] in NAME_SUFFIXES:
        words.pop()
    return words


def _unit_points(name: str) -> float:
    """Return the points of a column's name as that of a client, for names such as "hospitalid" or "region16" too."""
    return _name_points(" ".join(unit_words(name)), CLIENT_HINTS)


def _name_points(name: str, hints: tuple[frozenset[str], frozenset[str]]) -> float:
    """Return the points of a column's name: 3 if its last word is a strong hint, 2 if weak, else 0; +0.5 if alone."""
    words = _drop_suffixes(split_name(name))
    strong, weak = hints
    points = 0.0 if not words else 3.0 if words[-1] in strong else 2.0 if words[-1] in weak else 0.0
    return points + 0.5 if points and len(words) == 1 else points


class PositiveClass(NamedTuple):
    """The proposed positive value of a label of two values."""

    value: Any  # the positive value
    share: float  # its share of the rows, in [0, 1]
    other: Any  # the negative value
    why: str  # the reason, as text
    is_guess: bool = False


def positive_class(label: pd.Series) -> PositiveClass:
    """Propose the positive value of a label by known pairs such as yes and no; otherwise the rarer value."""
    shares = label.dropna().value_counts(normalize=True)
    frequent, rare = ((plain_value(value), float(share)) for value, share in shares.items())
    for needs_both in (True, False):
        for (one, share), (other, _) in ((frequent, rare), (rare, frequent)):
            if _is_positive(str(one).lower().strip(), str(other).lower().strip(), needs_both=needs_both):
                return PositiveClass(one, share, other, f"{one} rather than {other}")
    return PositiveClass(*rare, frequent[0], "the rarer value, a guess", True)


def _is_positive(one: str, other: str, *, needs_both: bool) -> bool:
    """Return whether both values are known as such; unless ``needs_both``, one that is not a letter suffices."""
    is_positive, is_negative = one in POSITIVE_VALUES, other in NEGATIVE_VALUES
    if needs_both:
        return is_positive and is_negative
    return (is_positive and len(one) > 1) or (is_negative and (len(other) > 1 or other == "0"))


def label_association(values: pd.Series, label: pd.Series, label_type: str) -> float:
    """Return the AUC, mean recall or rank correlation of a decision tree on one column, on other rows; 0 if unknown."""
    from scipy.stats import spearmanr
    from sklearn.metrics import balanced_accuracy_score, roc_auc_score
    from sklearn.model_selection import train_test_split
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    is_number = label_type == NUMBER_LABEL
    known = np.isfinite(label.to_numpy(float, na_value=np.nan)) if is_number else label.notna().to_numpy()
    rows = np.random.default_rng(0).permutation(known.nonzero()[0])[:MAX_SAMPLE]
    y = label.iloc[rows].to_numpy(float) if is_number else pd.factorize(label.iloc[rows], sort=True)[0]
    if len(rows) < MIN_CLASS_ROWS or (not is_number and np.bincount(y).min() < MIN_CLASS_ROWS):
        return 0.0
    tree: Any = (DecisionTreeRegressor if is_number else DecisionTreeClassifier)(min_samples_leaf=5, random_state=0)
    options = {"test_size": 0.5, "random_state": 0, "stratify": None if is_number else y}
    learn, test, y_learn, y_test = train_test_split(_to_numbers(values.iloc[rows]), y, **options)
    tree.fit(learn, y_learn)
    if label_type == BINARY:
        return float(roc_auc_score(y_test, tree.predict_proba(test)[:, 1]))
    predicted = tree.predict(test)
    if label_type == MULTICLASS:
        return float(balanced_accuracy_score(y_test, predicted))
    return float(spearmanr(predicted, y_test).statistic) if np.ptp(predicted) and np.ptp(y_test) else 0.0


def _to_numbers(values: pd.Series) -> np.ndarray:
    """Return a column as a matrix of rows × 1; categories are numbered, and an empty cell is below all others."""
    if (parsed := parse_datetimes(values)) is not None:
        numbers = np.where(values.isna(), np.nan, np.nan_to_num(parsed.days) + np.nan_to_num(parsed.hours) / 24)
    elif is_text(values):
        codes, _ = pd.factorize(to_categories(values).where(values.notna()), sort=True)
        numbers = codes.astype(float)
    else:
        numbers = values.to_numpy(float, na_value=np.nan)
    return np.nan_to_num(np.clip(numbers, -1e30, 1e30), nan=-2e30)[:, None]


def unit_columns(
    table: pd.DataFrame, summaries: Sequence[ColumnSummary], label: str, client: str
) -> dict[str, str | None]:
    """Return the columns that are constant within clients, and codes of units within clients, by name.

    The value is the reason to ignore a code, which is recognised by its name or by one value per client. It is None for
    other columns, which may be features of the clients.
    """
    owner, columns = pd.factorize(table[client])[0], dict[str, str | None]()
    for one in summaries:
        if one.name in (label, client) or one.content in (DATETIME, CONSTANT, EMPTY):
            continue
        codes, values = pd.factorize(table[one.name])
        known = (owner >= 0) & (codes >= 0)
        units, clients = (np.unique(array[known]).size for array in (codes, owner))
        if clients * MIN_CLIENT_ROWS > known.sum() or min(units, clients) < 2:
            continue
        is_code = one.content in (INTEGER, CODE, TWO_VALUES, IDENTIFIER) and _are_integers(table[one.name], values)
        is_unit = is_code and _unit_points(one.name) and units * MIN_CLIENT_ROWS <= known.sum()
        if (distinct := _constant_values(owner[known], codes[known])) is not None:
            columns[one.name] = _code_reason(one, values, distinct, clients, is_code=is_code)
        elif is_unit and _constant_values(codes[known], owner[known]) is not None:
            columns[one.name] = "a code of units within a client"
    return columns


def _are_integers(column: pd.Series, values: Any) -> bool:
    """Return whether the distinct ``values`` of a column are integers."""
    if is_text(column) or pd.api.types.is_bool_dtype(column):
        return False
    numbers = np.asarray(values, float)
    return bool((numbers == np.round(numbers)).all())


def _constant_values(groups: np.ndarray, codes: np.ndarray) -> int | None:
    """Return the number of distinct values of the groups if nearly all rows of a group have one; else None."""
    by_group = pd.Series(codes).groupby([groups, codes]).size()[::-1].groupby(level=0)
    within, overall = by_group.max().sum() / len(codes), np.bincount(codes).max() / len(codes)
    is_constant = within >= CONSTANT_SHARE and 1 - within <= (1 - overall) / 10  # rare values are no evidence
    distinct = len({code for _, code in by_group.idxmax()})
    return distinct if is_constant and distinct > 1 else None


def _code_reason(one: ColumnSummary, values: Any, distinct: int, clients: int, *, is_code: bool) -> str | None:
    """Return the reason to ignore a column that is constant within clients if it is a code; else None."""
    is_one_each = distinct == clients > 2
    is_named = (unit_words(one.name) or [""])[-1] in IDENTIFIER_HINTS | {"code"} and 2 * distinct > clients
    if one.content in (CATEGORY, IDENTIFIER) and not is_code:
        return "a name of the client: the same at all its rows" if is_one_each else None
    if not is_code:
        return None
    numbers = np.sort(np.asarray(values, float))
    is_consecutive = numbers[0] in (0, 1) and numbers[-1] - numbers[0] == len(numbers) - 1
    if _unit_points(one.name) or is_named or (is_one_each and is_consecutive):
        kind = "the client" if distinct == clients else "a group of clients"
        return f"a code of {kind}: the same at all rows of a client"
    return None


def reasons_to_ignore(
    summaries: Sequence[ColumnSummary], units: Mapping[str, str | None], *roles: str
) -> dict[str, str]:
    """Return the columns to ignore, each with its reason: unusable, or a code of clients. ``roles``: label, client."""
    reasons = {one.name: units.get(one.name) or one.reason for one in summaries if one.name not in roles}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def category_columns(
    table: pd.DataFrame, summaries: Sequence[ColumnSummary], reasons: Mapping[str, str], unused: Sequence[str]
) -> list[str]:
    """Return the columns to read as categories: category codes, and kept ones for which there are ``reasons``."""
    codes = (INTEGER, IDENTIFIER, CODE)
    used = [one for one in summaries if one.name not in unused and not is_text(table[one.name])]
    kept = {one.name for one in used if one.name in reasons and one.content in codes and one.values <= MAX_LEVELS}
    return [one.name for one in used if one.content == CODE or one.name in kept]


def leakage_remarks(table: pd.DataFrame, names: Sequence[str], label: str, label_type: str) -> dict[str, str]:
    """Return remarks on the columns ``names`` that predict the label almost alone; an empty dict if there is none."""
    values = {name: label_association(table[name], table[label], label_type) for name in names}
    text = f"predicts the label almost alone ({MEASURES[label_type]} {{:.3f}})"
    return {name: text.format(value) for name, value in values.items() if value > LEAKAGE}


def remarks(
    table: pd.DataFrame, summaries: Sequence[ColumnSummary], label: str, client: str, ignored: Sequence[str]
) -> list[str]:
    """Return remarks on dropped rows, ambiguous dates and duplicate rows of a table; an empty list if none applies."""
    lines = []
    for name, role in ((label, "label"), (client, "client")):
        if missing := int(table[name].isna().sum()):
            lines.append(f"{missing:,} of {len(table):,} rows have no {role} ({name}) and are dropped")
    lines += [f"{one.name}: {one.remark}" for one in summaries if one.remark and one.name not in ignored]
    duplicates = int(table.drop(columns=list(ignored)).duplicated().sum())
    if duplicates > DUPLICATES_SHARE * len(table):
        lines.append(
            f"{duplicates:,} of {len(table):,} rows duplicate another row; remove copies, because a held-out copy of a "
            "training row is not new data"
        )
    return lines


def parse_value(values: pd.Series, text: str, flag: str) -> Any:
    """Return the value of a column that is written as ``text``, such as 2 for "2.0"; ``flag`` is for the error."""
    known = {str(plain): plain for plain in map(plain_value, pd.unique(values.dropna()))}
    if text not in known:
        text = next((key for key, plain in known.items() if same_value(plain, text)), text)
    return known[check_choice(f"{flag}, a value of {values.name!r},", text, sorted(known))]
