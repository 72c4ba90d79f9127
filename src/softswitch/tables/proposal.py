"""Proposals for a table: the label, the client, the positive class, and columns to ignore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from softswitch.problem.choices import BINARY, MULTICLASS, NUMBER
from softswitch.tables import inspection
from softswitch.tables.cells import holds_datetimes, is_text, parse_datetimes
from softswitch.tables.constraints import kind_names
from softswitch.tables.features import to_categories
from softswitch.tables.inspection import CATEGORY, INTEGER, TWO_VALUES, ColumnSummary, plain_value
from softswitch.tables.metrics import auc
from softswitch.tables.settings import DataSection

LEAKAGE = 0.99  # association with the label from which a column is most likely a copy of it, or known only after it
MAX_ROWS = 20_000  # number of rows from which associations are computed on a sample
BINS = 50
MIN_CLASS_ROWS = 10  # smallest number of rows of a class for an association
DEFAULT_KIND = {BINARY: "miss-rate", MULTICLASS: "class-miss-rate", NUMBER: "coverage"}
LABEL_DESCRIPTIONS = {BINARY: "two classes", MULTICLASS: "several classes", NUMBER: "a number"}
MEASURES = {BINARY: "AUC", MULTICLASS: "mean recall", NUMBER: "rank correlation"}
"""Measure of association by label type."""
Summaries = Sequence[ColumnSummary]
HELD_OUT = DataSection("", "", "").held_out
DUPLICATES_SHARE = 0.01  # share of duplicate rows from which there is a remark
RARE_CLASS_ROWS = 20  # number of rows of a class below which there is a remark
MIN_CLIENT_ROWS = 3  # smallest mean number of rows per client
CLEAR_CHOICES = ((3.0, 1.0), (2.0, 2.0))
"""Points of a clear choice, each with its smallest lead over the next candidate."""


def label_association(values: pd.Series, label: pd.Series, label_type: str) -> float:
    """Return how well a single column predicts the label, at most 1, as the measure of the label type.

    The column is grouped into levels (categories, or bins of numbers; an empty cell is a level). The label of each
    level is learnt from half of the rows and evaluated on the rest. Numbers are also compared by rank.
    """
    known = label.notna().to_numpy()
    if label_type == NUMBER:
        known = known & np.isfinite(label.to_numpy(float))
    rows = known.nonzero()[0]
    if len(rows) < MIN_CLASS_ROWS:
        return 0.0
    if len(rows) > MAX_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, MAX_ROWS, replace=False))
    rows = np.random.default_rng(1).permutation(rows)  # files are often sorted
    levels, numbers = _group_levels(values.iloc[rows])
    filled, learn = ~np.isnan(numbers), np.arange(len(rows)) % 2 == 0
    has_ranks = filled.mean() >= 0.5
    if label_type == NUMBER:
        target = label.iloc[rows].to_numpy(float)
        by_level = by_rank = 0.0
        if np.bincount(levels).max() >= MIN_CLASS_ROWS:
            by_level = _correlation(_level_means(levels, target, learn)[~learn], target[~learn])
        if has_ranks and filled.sum() >= MIN_CLASS_ROWS:
            ranks = (pd.Series(column[filled]).rank().to_numpy() for column in (numbers, target))
            by_rank = abs(_correlation(*ranks))
        return max(by_level, by_rank)
    classes, _ = pd.factorize(label.iloc[rows], sort=True)
    if len(classes) == 0 or np.bincount(classes).min() < MIN_CLASS_ROWS:
        return 0.0
    if label_type == MULTICLASS:
        return _mean_recall(levels, classes, learn)
    level_auc = auc(classes[~learn], _level_means(levels, classes.astype(float), learn)[~learn])
    best = float(np.nan_to_num(level_auc, nan=0.5))
    if has_ranks and min(np.bincount(classes[filled], minlength=2)) >= MIN_CLASS_ROWS:
        number_auc = auc(classes[filled], numbers[filled])
        best = max(best, number_auc, 1 - number_auc)
    return best


def duplicates_client(values: pd.Series, client: pd.Series) -> bool:
    """Return whether the values of a column and the clients correspond one to one."""
    count = client.nunique()
    if count < 3 or values.nunique() != count or values.isna().any():
        return False
    pairs = pd.DataFrame({"values": to_categories(values).to_numpy(), "client": to_categories(client).to_numpy()})
    return len(pairs.drop_duplicates()) == count


def _group_levels(values: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return the column as codes of levels, and as numbers, which are NaN for categories."""
    if holds_datetimes(values):
        parsed = parse_datetimes(values)
        numbers = np.where(values.isna(), np.nan, np.nan_to_num(parsed.days) + np.nan_to_num(parsed.hours) / 24)
    elif is_text(values) or pd.api.types.is_bool_dtype(values):
        codes, _ = pd.factorize(to_categories(values).where(values.notna()), use_na_sentinel=False)
        return codes, np.full(len(values), np.nan)
    else:
        numbers = values.to_numpy(float, na_value=np.nan)
    if len(np.unique(numbers[~np.isnan(numbers)])) <= BINS:
        return pd.factorize(numbers, use_na_sentinel=False)[0], numbers
    edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, BINS + 1)[1:-1]))
    return np.where(np.isnan(numbers), len(edges) + 1, np.searchsorted(edges, numbers, side="right")), numbers


def _level_means(levels: np.ndarray, target: np.ndarray, learn: np.ndarray) -> np.ndarray:
    """Return the mean of each row's level in the learning half, shrunk to the overall mean by one row."""
    count = int(levels.max()) + 1
    sums = np.bincount(levels[learn], target[learn], count) + target[learn].mean()
    return (sums / (np.bincount(levels[learn], minlength=count) + 1))[levels]


def _mean_recall(levels: np.ndarray, classes: np.ndarray, learn: np.ndarray) -> float:
    """Return the mean recall over classes of predicting each level's most frequent class."""
    count = int(classes.max()) + 1
    shares = np.bincount(classes[learn], minlength=count) / learn.sum()
    counts = np.zeros((int(levels.max()) + 1, count)) + 1e-3 * shares
    np.add.at(counts, (levels[learn], classes[learn]), 1)
    correct = pd.Series(counts[levels[~learn]].argmax(1) == classes[~learn])
    return float(correct.groupby(classes[~learn]).mean().mean())


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.corrcoef(first, second)[0, 1]) if first.std() and second.std() else 0.0


class Candidate(NamedTuple):
    """A column that may have a role, with points for the evidence."""

    name: str
    points: float
    why: str


class PositiveClass(NamedTuple):
    """The positive value of a label, its share of the rows, and the negative value."""

    value: Any
    share: float
    other: Any
    why: str


def label_candidates(summaries: Summaries) -> list[Candidate]:
    """Return columns that may be the label, the most likely first."""
    usable = [one for one in summaries if one.content not in (*inspection.UNUSABLE, *inspection.DATETIMES)]
    binary = sum(one.content == TWO_VALUES for one in usable)
    candidates = []
    for one in usable:
        evidence = [
            _name_evidence(one.name, inspection.LABEL_HINTS),
            (1.0, "the last column" if one.name == summaries[-1].name else ""),
            (0.5, "the first column" if one.name == summaries[0].name != summaries[-1].name else ""),
            (1.0, "two values" if one.content == TWO_VALUES else ""),
            (1.0, "the only column of two values" if one.content == TWO_VALUES and binary == 1 else ""),
        ]
        points = sum(points for points, why in evidence if why)
        if _name_evidence(one.name, inspection.CLIENT_HINTS)[0]:
            points -= 2
        candidates.append(Candidate(one.name, points, ", ".join(why for _, why in evidence if why)))
    return sorted(candidates, key=lambda candidate: -candidate.points)


def client_candidates(summaries: Summaries, rows: int, label: str | None) -> list[Candidate]:
    """Return columns that may be the client, the most likely first."""
    candidates = []
    for one in summaries:
        is_identifier = one.reason is not None and one.reason.startswith("named as")
        is_usable = one.content in (CATEGORY, INTEGER, TWO_VALUES) or is_identifier
        if one.name == label or not is_usable or one.values < 2 or one.values * MIN_CLIENT_ROWS > rows:
            continue
        points, why = _name_evidence(one.name, inspection.CLIENT_HINTS)
        size = f"{one.values:,} values with {rows / one.values:,.0f} rows on average"
        if one.content == TWO_VALUES or (one.content == INTEGER and not points):
            points -= 1
        elif one.content == CATEGORY and one.values >= 3:
            points += 0.5
        candidates.append(Candidate(one.name, points, ", ".join(filter(None, (why, size)))))
    return sorted(candidates, key=lambda candidate: -candidate.points)


def clear_choice(candidates: Sequence[Candidate]) -> str | None:
    """Return the best candidate if it is clearly ahead, else None."""
    if not candidates:
        return None
    best, second = candidates[0].points, candidates[1].points if len(candidates) > 1 else 0.0
    is_clear = any(best >= points and best - second >= lead for points, lead in CLEAR_CHOICES)
    return candidates[0].name if is_clear else None


def _name_evidence(name: str, hints: tuple[frozenset[str], frozenset[str]]) -> tuple[float, str]:
    """Return points for a name whose noun is a strong (3) or weak (2) hint, and the reason."""
    words = inspection.split_name(name)
    while len(words) > 1 and words[-1] in inspection.NAME_SUFFIXES:
        words.pop()
    for points, nouns in zip((3.0, 2.0), hints, strict=True):
        if words and words[-1] in nouns:
            return points + (0.5 if len(words) == 1 else 0.0), "its name"
    return 0.0, ""


_POSITIVE, _NEGATIVE = inspection.POSITIVE_VALUES, inspection.NEGATIVE_VALUES
_NEGATIONS = ("no ", "not ", "non-", "non ", "non", "un", "in", "no_", "not_")
_RULES: tuple[Callable[[str, str], bool], ...] = (
    lambda one, other: one in _POSITIVE and other in _NEGATIVE,
    lambda one, other: len(one) > 1 and one in _POSITIVE and other not in _POSITIVE,
    lambda one, other: (
        ((len(other) > 1 or other == "0") and other in _NEGATIVE and one not in _NEGATIVE)
        or other in [prefix + one for prefix in _NEGATIONS]
    ),
)
"""Whether the first of two values is the positive one; a later rule applies if no earlier one does."""


def positive_class(label: pd.Series) -> PositiveClass:
    """Propose the positive value of a label by the meaning of its values, else the rarer value."""
    shares = label.dropna().value_counts(normalize=True)
    frequent, rare = ((plain_value(value), float(share)) for value, share in shares.items())
    for rule in _RULES:
        for (one, share), (other, _) in ((frequent, rare), (rare, frequent)):
            if rule(str(one).lower().strip(), str(other).lower().strip()):
                return PositiveClass(one, share, other, f"{one} rather than {other}")
    return PositiveClass(*rare, frequent[0], "the rarer value, a guess")


def reasons_to_ignore(
    table: pd.DataFrame, summaries: Summaries, label: str, client: str, label_type: str, keep: Sequence[str] = ()
) -> dict[str, str]:
    """Return columns to ignore, each with a reason that completes "it is"."""
    reasons = {}
    for one in summaries:
        if one.name in (label, client, *keep):
            continue
        if one.reason is not None:
            reasons[one.name] = one.reason
        elif one.content in (CATEGORY, INTEGER) and duplicates_client(table[one.name], table[client]):
            reasons[one.name] = f"a copy of {client}, which is unknown for new clients"
        elif (association := label_association(table[one.name], table[label], label_type)) > LEAKAGE:
            measured = f"{MEASURES[label_type]} {association:.3f}"
            reasons[one.name] = f"a near copy of {label} ({measured}); is it known when a prediction is needed?"
    return reasons


def remarks(
    table: pd.DataFrame, summaries: Summaries, label: str, client: str, label_type: str, ignored: Sequence[str]
) -> list[str]:
    """Return remarks on a table that can be trained on."""
    lines = []
    for name, role in ((label, "label"), (client, "client")):
        if missing := int(table[name].isna().sum()):
            lines.append(f"{missing:,} of {len(table):,} rows have no {role} ({name}) and are dropped")
    rows = table.dropna(subset=[label, client])
    clients = to_categories(rows[client])
    sizes = clients.value_counts()
    enough = next(count for count in range(1, 1000) if int(HELD_OUT * count) >= 1)
    if few := int((sizes < enough).sum()):
        lines.append(
            f"clients with fewer than {enough} rows: {few:,} of {len(sizes):,}; none of their rows can be held out, so "
            "there is no certificate for all clients"
        )
    if label_type == BINARY and (single := int((rows[label].groupby(clients).nunique() < 2).sum())):
        lines.append(f"clients with rows of one class only: {single:,} of {len(sizes):,}")
    counts = to_categories(rows[label]).value_counts() if label_type == MULTICLASS else pd.Series(dtype=int)
    if rare := [f"{shorten(name)} ({count})" for name, count in counts.items() if count < RARE_CLASS_ROWS]:
        lines.append(f"classes with fewer than {RARE_CLASS_ROWS} rows, too few to learn: {', '.join(rare[:5])}")
    lines += [f"{one.name}: {one.remark}" for one in summaries if one.remark and one.name not in ignored]
    if half := [one.name for one in summaries if one.empty > 0.5 and one.name not in (*ignored, label, client)]:
        lines.append(f"more than half of the cells are empty in {', '.join(half)}")
    duplicates = int(table.drop(columns=list(ignored)).duplicated().sum())
    if duplicates > DUPLICATES_SHARE * len(table):
        lines.append(
            f"{duplicates:,} of {len(table):,} rows duplicate another row; remove copies, because a held-out copy of a "
            "training row is not new data"
        )
    return lines


def suitable_kinds(values: pd.Series, label_type: str) -> tuple[str, ...]:
    """Return the kinds of constraints that support a label."""
    if label_type == BINARY:
        return kind_names(BINARY, MULTICLASS)
    is_numeric = label_type == MULTICLASS and pd.api.types.is_numeric_dtype(values)
    return kind_names(label_type, *((NUMBER,) if is_numeric else ()))


def parse_value(values: pd.Series, text: str, flag: str) -> Any:
    """Return the value of a column that a string of the command line means."""
    known = {str(plain): plain for plain in map(plain_value, pd.unique(values.dropna()))}
    matches = [text] if text in known else [name for name in known if name.lower() == text.lower()]
    if len(matches) != 1:
        examples = ", ".join(map(repr, sorted(known)[:8]))
        raise ValueError(f"{flag} must be a value of {values.name!r}, but is {text!r}; values are {examples}")
    return known[matches[0]]


def shorten(text: str, longest: int = 24) -> str:
    """Return the text, truncated to a length."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def summarize_values(values: pd.Series, most: int = 3) -> str:
    """Return the most frequent values with their shares, or the range of numbers."""
    filled = values.dropna()
    if pd.api.types.is_float_dtype(filled) and filled.nunique() > most:
        return f"{filled.min():g} to {filled.max():g}"
    shares = to_categories(filled).value_counts(normalize=True)
    texts = [f"{shorten(value)} {share:.0%}" for value, share in shares.iloc[:most].items()]
    return ", ".join(texts) + (" …" if len(shares) > most else "")
