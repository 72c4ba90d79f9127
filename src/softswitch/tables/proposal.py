"""Proposals of ``softswitch init`` for a table: the label, the client, the positive class, and columns to ignore."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.support.checks import check_choice
from softswitch.tables import inspection
from softswitch.tables.cells import is_text, parse_datetimes
from softswitch.tables.features import to_categories
from softswitch.tables.inspection import CATEGORY, INTEGER, TWO_VALUES, ColumnSummary, plain_value

LEAKAGE = 0.99  # a column with a larger association is most likely a copy of the label, or known only after it
MAX_ROWS = 20_000  # largest number of rows from which an association is computed; others are not used
MIN_CLASS_ROWS = 10  # smallest number of rows of each class for an association
MEASURES = {BINARY: "AUC", MULTICLASS: "mean recall", NUMBER: "rank correlation"}  # associations by label type
DUPLICATES_SHARE = 0.01  # largest share of duplicate rows without a remark
MIN_CLIENT_ROWS = 3  # smallest mean number of rows per client
CLEAR_CHOICES = ((3.0, 1.0), (2.0, 2.0))  # points of a clear choice, and its lead over the next candidate


class Candidate(NamedTuple):
    """A column that may be the label or the client."""

    name: str
    points: float  # strength of the evidence; 3 is strong
    why: str  # the evidence, as text


def label_candidates(summaries: Sequence[ColumnSummary]) -> list[Candidate]:
    """Return the columns that may be the label, the most likely first."""
    usable = [one for one in summaries if one.content not in (*inspection.UNUSABLE, inspection.DATETIME)]
    binary = [one for one in usable if one.content == TWO_VALUES]
    candidates = []
    for one in usable:
        evidence = [
            (_name_points(one.name, inspection.LABEL_HINTS), "its name"),
            (1.0 * (one is summaries[-1]), "the last column"),
            (0.5 * (one is summaries[0]), "the first column"),
            (1.0 * (one in binary), "two values"),
            (1.0 * (binary == [one]), "the only column of two values"),
        ]
        points = sum(points for points, _ in evidence)
        points -= 2 if _name_points(one.name, inspection.CLIENT_HINTS) else 0
        candidates.append(Candidate(one.name, points, ", ".join(why for points, why in evidence if points)))
    return sorted(candidates, key=lambda candidate: -candidate.points)


def client_candidates(summaries: Sequence[ColumnSummary], rows: int, label: str | None) -> list[Candidate]:
    """Return the columns that may identify the client, the most likely first; ``rows`` is the number of rows."""
    candidates = []
    for one in summaries:
        is_identifier = one.reason is not None and one.reason.startswith("named as")
        is_usable = one.content in (CATEGORY, INTEGER, TWO_VALUES) or is_identifier
        if one.name == label or not is_usable or one.values < 2 or one.values * MIN_CLIENT_ROWS > rows:
            continue
        points = _name_points(one.name, inspection.CLIENT_HINTS)
        why = ["its name"] * (points > 0) + [f"{one.values:,} values with {rows / one.values:,.0f} rows on average"]
        if one.content == TWO_VALUES or (one.content == INTEGER and not points):
            points -= 1
        elif one.content == CATEGORY:
            points += 0.5
        candidates.append(Candidate(one.name, points, ", ".join(why)))
    return sorted(candidates, key=lambda candidate: -candidate.points)


def clear_choice(candidates: Sequence[Candidate]) -> str | None:
    """Return the name of the first candidate if it is a clear choice by ``CLEAR_CHOICES``; else None."""
    best, second, *_ = *(candidate.points for candidate in candidates), 0.0, 0.0
    is_clear = any(best >= points and best - second >= lead for points, lead in CLEAR_CHOICES)
    return candidates[0].name if is_clear else None


def _name_points(name: str, hints: tuple[frozenset[str], frozenset[str]]) -> float:
    """Return the points of a column's name: 3 if its last word is a strong hint, 2 if weak, else 0; +0.5 if alone."""
    words = inspection.split_name(name)
    while len(words) > 1 and words[-1] in inspection.NAME_SUFFIXES:
        words.pop()
    points = next(
        (points for points, nouns in zip((3.0, 2.0), hints, strict=True) if words and words[-1] in nouns), 0.0
    )
    return points + 0.5 if points and len(words) == 1 else points


class PositiveClass(NamedTuple):
    """The proposed positive value of a label of two values."""

    value: Any  # the positive value
    share: float  # its share of the rows, in [0, 1]
    other: Any  # the negative value
    why: str  # the reason, as text


def positive_class(label: pd.Series) -> PositiveClass:
    """Propose the positive value of a label by known pairs such as yes and no; otherwise the rarer value."""
    shares = label.dropna().value_counts(normalize=True)
    frequent, rare = ((plain_value(value), float(share)) for value, share in shares.items())
    for needs_both in (True, False):
        for (one, share), (other, _) in ((frequent, rare), (rare, frequent)):
            if _is_positive(str(one).lower().strip(), str(other).lower().strip(), needs_both=needs_both):
                return PositiveClass(one, share, other, f"{one} rather than {other}")
    return PositiveClass(*rare, frequent[0], "the rarer value, a guess")


def _is_positive(one: str, other: str, *, needs_both: bool) -> bool:
    """Return whether ``one`` is a known positive value and ``other`` a known negative one.

    Unless ``needs_both``, either suffices if it has more than one character or is "0".
    """
    is_positive, is_negative = one in inspection.POSITIVE_VALUES, other in inspection.NEGATIVE_VALUES
    if needs_both:
        return is_positive and is_negative
    return (is_positive and len(one) > 1) or (is_negative and (len(other) > 1 or other == "0"))


def label_association(values: pd.Series, label: pd.Series, label_type: str) -> float:
    """Return the AUC, mean recall or rank correlation of a decision tree on one column, on other rows; 0 if unknown."""
    from scipy.stats import spearmanr
    from sklearn.metrics import balanced_accuracy_score, roc_auc_score
    from sklearn.model_selection import train_test_split
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    is_number = label_type == NUMBER
    known = np.isfinite(label.to_numpy(float, na_value=np.nan)) if is_number else label.notna().to_numpy()
    rows = np.random.default_rng(0).permutation(known.nonzero()[0])[:MAX_ROWS]
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


def reasons_to_ignore(
    table: pd.DataFrame, summaries: Sequence[ColumnSummary], label: str, client: str, label_type: str
) -> dict[str, str]:
    """Return the columns to ignore, each with its reason: unusable, or a near copy of the label."""
    reasons = {}
    for one in summaries:
        if one.name in (label, client):
            continue
        if one.reason is not None:
            reasons[one.name] = one.reason
        elif (association := label_association(table[one.name], table[label], label_type)) > LEAKAGE:
            measured = f"{MEASURES[label_type]} {association:.3f}"
            reasons[one.name] = f"a near copy of {label} ({measured}); is it known when a prediction is needed?"
    return reasons


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
    """Return the value of a column whose text is ``text``, or raise ValueError; ``flag`` is the option in the error."""
    known = {str(plain): plain for plain in map(plain_value, pd.unique(values.dropna()))}
    return known[check_choice(f"{flag}, a value of {values.name!r},", text, sorted(known))]
