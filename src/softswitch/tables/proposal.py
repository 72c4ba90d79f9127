"""What a table proposes: the column to predict, whose rows they are, which class counts, and what to leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from softswitch.tables.cells import holds_datetimes, is_text, parse_datetimes
from softswitch.tables.features import to_categories
from softswitch.tables.inspection import (
    MOMENTS,
    NAMES_OF_CLIENTS,
    NAMES_OF_LABELS,
    NAMES_OF_NAMES,
    NEGATIVE,
    POSITIVE,
    UNUSABLE,
    WHOLE,
    WORDS,
    YES_NO,
    ColumnSummary,
    plain,
    split_name,
)
from softswitch.tables.metrics import auc
from softswitch.tables.settings import OF_AMOUNTS, OF_CLASSES, RATES, TASKS, DataSection

TOO_GOOD = 0.99
"""What a column tells by itself from which on it is most likely a copy of the label, or known only after it."""
LOOKED_AT = 20_000
"""Rows, at most."""
BINS = 50
FEWEST = 10
"""Rows of a class, fewer of which tell nothing."""


def label_association(values: pd.Series, label: pd.Series, what: str) -> tuple[float, str]:
    """How well a column tells the label by itself, from 0 or below to 1, and what that number is.

    A column is taken as levels (words, or numbers in bins, an empty cell is one too); what the label is in each is
    learnt from every second row and looked at on the others. Of numbers their ranks are looked at as well.

    Args:
        values: the column.
        label: the column to predict.
        what: what the label is: "two" classes, several "classes" or a "number".
    """
    known = label.notna().to_numpy()
    if what == "number":
        known = known & np.isfinite(label.to_numpy(float))
    rows = known.nonzero()[0]
    if len(rows) < FEWEST:
        return 0.0, {"number": "rank correlation", "two": "AUC"}.get(what, "mean recall")
    if len(rows) > LOOKED_AT:
        rows = np.sort(np.random.default_rng(0).choice(rows, LOOKED_AT, replace=False))
    # Every second row of an order at random: files are often sorted.
    rows = np.random.default_rng(1).permutation(rows)
    levels, numbers = _levels(values.iloc[rows])
    told = label.iloc[rows]
    learn = np.arange(len(rows)) % 2 == 0
    if what == "number":
        wanted = told.to_numpy(float)
        return max(_share_explained(levels, wanted, learn), _rank_correlation(numbers, wanted)), "rank correlation"
    classes, _ = pd.factorize(told, sort=True)
    if len(classes) == 0 or np.bincount(classes).min() < FEWEST:
        return 0.0, "AUC" if what == "two" else "mean recall"
    if what == "two":
        return max(_auc_of_levels(levels, classes, learn), _auc_of_numbers(numbers, classes)), "AUC"
    return _recall(levels, classes, learn), "mean recall"


def duplicates_client(values: pd.Series, client: pd.Series) -> bool:
    """Whether a column says the client in other words: each of its values goes with one client, and the reverse."""
    many = client.nunique()
    if many < 3 or values.nunique() != many or values.isna().any():
        return False
    pairs = pd.DataFrame({"one": to_categories(values).to_numpy(), "other": to_categories(client).to_numpy()})
    return len(pairs.drop_duplicates()) == many


def _levels(values: pd.Series) -> tuple[np.ndarray, np.ndarray | None]:
    """The column as level numbers, empty cells are one; and as numbers, where it holds such."""
    if holds_datetimes(values):
        moments = parse_datetimes(values)
        days = np.where(np.isnan(moments.days), 0, moments.days) + np.nan_to_num(moments.hours) / 24
        numbers = np.where(values.isna(), np.nan, days)
    elif is_text(values) or pd.api.types.is_bool_dtype(values):
        return pd.factorize(to_categories(values).where(values.notna()), use_na_sentinel=False)[0], None
    else:
        numbers = values.to_numpy(float, na_value=np.nan)
    if len(np.unique(numbers[~np.isnan(numbers)])) <= BINS:
        return pd.factorize(numbers, use_na_sentinel=False)[0], numbers
    edges = np.unique(np.nanquantile(numbers, np.linspace(0, 1, BINS + 1)[1:-1]))
    return np.where(np.isnan(numbers), len(edges) + 1, np.searchsorted(edges, numbers, side="right")), numbers


def _means(levels: np.ndarray, wanted: np.ndarray, learn: np.ndarray) -> np.ndarray:
    """Each row's level's mean among the rows to learn from, drawn to the mean of all by one row's weight."""
    many = int(levels.max()) + 1
    overall = wanted[learn].mean()
    sums = np.bincount(levels[learn], wanted[learn], many) + overall
    return (sums / (np.bincount(levels[learn], minlength=many) + 1))[levels]


def _auc_of_levels(levels: np.ndarray, classes: np.ndarray, learn: np.ndarray) -> float:
    scores = _means(levels, classes.astype(float), learn)
    return float(np.nan_to_num(auc(scores[~learn], classes[~learn] == 1), nan=0.5))


def _auc_of_numbers(numbers: np.ndarray | None, classes: np.ndarray) -> float:
    """Of the rows whose number is there, where most are."""
    if numbers is None:
        return 0.0
    there = ~np.isnan(numbers)
    kept = classes[there]
    if there.mean() < 0.5 or min(np.bincount(kept, minlength=2)) < FEWEST:
        return 0.0
    found = auc(numbers[there], kept == 1)
    return max(found, 1 - found)


def _recall(levels: np.ndarray, classes: np.ndarray, learn: np.ndarray) -> float:
    """The classes' mean share of rows that their level's most frequent class gets right."""
    many = int(classes.max()) + 1
    shares = np.bincount(classes[learn], minlength=many) / learn.sum()
    counts = np.zeros((int(levels.max()) + 1, many)) + 1e-3 * shares
    np.add.at(counts, (levels[learn], classes[learn]), 1)
    guess = counts[levels[~learn]].argmax(1)
    right = guess == classes[~learn]
    return float(np.mean([right[classes[~learn] == one].mean() for one in np.unique(classes[~learn])]))


def _share_explained(levels: np.ndarray, wanted: np.ndarray, learn: np.ndarray) -> float:
    """The correlation of the label with its mean by level, on other rows."""
    if np.bincount(levels).max() < FEWEST:
        return 0.0
    return _correlation(_means(levels, wanted, learn)[~learn], wanted[~learn])


def _rank_correlation(numbers: np.ndarray | None, wanted: np.ndarray) -> float:
    if numbers is None:
        return 0.0
    there = ~np.isnan(numbers)
    if there.mean() < 0.5 or there.sum() < FEWEST:
        return 0.0
    from scipy.stats import rankdata  # takes half a second to import

    return abs(_correlation(rankdata(numbers[there]), rankdata(wanted[there])))


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    if not one.std() or not other.std():
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


DEFAULT_KIND = {"two": TASKS[0], "classes": "class-miss-rate", "number": "coverage"}
"""What must hold at every client, where nobody says: by what the label is."""
BOUNDS = {"class-miss-rate": 0.5, "coverage": 0.1} | dict.fromkeys(set(RATES) - {"class-miss-rate"}, 0.05)
"""Bounds where nobody says; 0.1 of a loss or a probability."""
PART_OF_DEVIATION, PART_OF_SPREAD = 0.1, 0.75
"""A mean error in units of the label's standard deviation, and a mean absolute error in units of a constant's."""
LABEL_DESCRIPTIONS = {"two": "two classes", "classes": "several classes", "number": "a number"}

HELD_OUT = DataSection("", "", "").held_out
MANY_COPIES = 0.01
"""The share of rows that look like others from which on it is said."""
FEWEST_OF_A_CLASS = 20
"""Rows of a class, fewer of which are said."""
FEWEST_ROWS = 3
"""Rows that a column's values have on the average, at least, where they may be clients."""
SURE = ((3.0, 1.0), (2.0, 2.0))
"""Points from which on a column is taken without asking, each with by how many it must be ahead of the next."""


@dataclass(frozen=True)
class Candidate:
    """A column that may be meant.

    Attributes:
        name: the column.
        points: how much speaks for it.
        why: what does.
    """

    name: str
    points: float
    why: str


@dataclass(frozen=True)
class PositiveClass:
    """The value that counts as positive.

    Attributes:
        value: as a file of settings writes it.
        share: of the rows that have it.
        other: the negative value.
        why: why this one.
    """

    value: Any
    share: float
    other: Any
    why: str


def label_candidates(survey: Sequence[ColumnSummary]) -> list[Candidate]:
    """Columns that may be the one to predict, those first for which most speaks."""
    found = []
    able = [seen for seen in survey if seen.what not in (*UNUSABLE, *MOMENTS)]
    two = [seen for seen in able if seen.what == YES_NO]
    for seen in able:
        points, why = _by_name(seen.name, NAMES_OF_LABELS, "its name")
        if seen.name == survey[-1].name:
            points, why = points + 1, [*why, "the last column"]
        elif seen.name == survey[0].name:
            points, why = points + 0.5, [*why, "the first column"]
        if seen.what == YES_NO:
            points, why = points + 1, [*why, "two values"]
            if len(two) == 1:
                points, why = points + 1, [*why, "the only column of two values"]
        if _by_name(seen.name, NAMES_OF_CLIENTS, "")[0]:
            points -= 2
        found.append(Candidate(seen.name, points, ", ".join(why)))
    return sorted(found, key=lambda one: -one.points)


def client_candidates(survey: Sequence[ColumnSummary], rows: int, label: str | None) -> list[Candidate]:
    """Columns that may say whose row it is, those first for which most speaks."""
    found = []
    for seen in survey:
        identifier = seen.reason is not None and seen.reason.startswith("named as")
        able = seen.what in (WORDS, WHOLE, YES_NO) or identifier
        if seen.name == label or not able or seen.values < 2 or seen.values * FEWEST_ROWS > rows:
            continue
        points, why = _by_name(seen.name, NAMES_OF_CLIENTS, "its name")
        if seen.what == WORDS and seen.values >= 3:
            points += 0.5
        if seen.what == YES_NO or (seen.what == WHOLE and not points):
            points -= 1
        why.append(f"{seen.values:,} values, {rows / seen.values:,.0f} rows each on the average")
        found.append(Candidate(seen.name, points, ", ".join(why)))
    return sorted(found, key=lambda one: -one.points)


def clear_choice(candidates: Sequence[Candidate]) -> str | None:
    """The column that is meant without doubt; None where one has to be asked for."""
    if not candidates:
        return None
    best, next_best = candidates[0].points, candidates[1].points if len(candidates) > 1 else 0.0
    sure = any(best >= points and best - next_best >= ahead for points, ahead in SURE)
    return candidates[0].name if sure else None


def _by_name(name: str, hints: tuple[frozenset[str], frozenset[str]], why: str) -> tuple[float, list[str]]:
    """Points for a name whose noun, its last word but for id, name and the like, says so (3) or often does (2)."""
    parts = split_name(name)
    while len(parts) > 1 and parts[-1] in NAMES_OF_NAMES:
        parts.pop()
    for points, words in zip((3.0, 2.0), hints, strict=True):
        if parts and parts[-1] in words:
            return points + (0.5 if len(parts) == 1 else 0.0), [why]
    return 0.0, []


def positive_class(label: pd.Series) -> PositiveClass:
    """Which of a label's two values counts as positive: what its words say, else the rarer."""
    shares = label.dropna().value_counts(normalize=True)
    one, other = (plain(value) for value in shares.index)
    share = {one: float(shares.iloc[0]), other: float(shares.iloc[1])}
    by_word = _by_words(str(one), str(other))
    if by_word is not None:
        chosen, rest = (one, other) if by_word else (other, one)
        return PositiveClass(chosen, share[chosen], rest, f"{chosen} rather than {rest}")
    return PositiveClass(other, share[other], one, "the rarer of the two, a guess")


def _by_words(one: str, other: str) -> bool | None:
    """Whether the first of two words is the positive one; None where they do not tell."""
    one, other = one.lower().strip(), other.lower().strip()
    for first, second, answer in ((one, other, True), (other, one, False)):
        if first in POSITIVE and second in NEGATIVE:
            return answer
    for first, second, answer in ((one, other, True), (other, one, False)):
        if len(first) > 1 and first in POSITIVE and second not in POSITIVE:
            return answer
    for first, second, answer in ((one, other, True), (other, one, False)):
        if (len(second) > 1 or second == "0") and second in NEGATIVE and first not in NEGATIVE:
            return answer
        if any(
            second == before + first for before in ("no ", "not ", "non-", "non ", "non", "un", "in", "no_", "not_")
        ):
            return answer
    return None


def reasons_to_ignore(
    table: pd.DataFrame,
    survey: Sequence[ColumnSummary],
    label: str,
    client: str,
    what: str,
    keep: Sequence[str] = (),
) -> dict[str, str]:
    """Columns to leave out, each with the reason."""
    found = {}
    for seen in survey:
        if seen.name in (label, client, *keep):
            continue
        if seen.reason is not None:
            found[seen.name] = seen.reason
        elif seen.what in (WORDS, WHOLE) and duplicates_client(table[seen.name], table[client]):
            found[seen.name] = f"says {client} in other words, which a new client's row cannot"
        else:
            told, measure = label_association(table[seen.name], table[label], what)
            if told > TOO_GOOD:
                found[seen.name] = (
                    f"tells {label} by itself ({measure} {told:.3f}): is it known when a prediction is needed?"
                )
    return found


def remarks(
    table: pd.DataFrame,
    survey: Sequence[ColumnSummary],
    label: str,
    client: str,
    what: str,
    ignored: Sequence[str],
) -> list[str]:
    """What is to be said of a table that can be trained on."""
    said = []
    for name, role in ((label, "label"), (client, "client")):
        if gaps := int(table[name].isna().sum()):
            said.append(f"{gaps:,} of {len(table):,} rows have no {role} ({name}): they are left out")
    rows = table.dropna(subset=[label, client])
    sizes = to_categories(rows[client]).value_counts()
    enough = next(many for many in range(1, 1000) if int(HELD_OUT * many) >= 1)
    if few := int((sizes < enough).sum()):
        said.append(
            f"clients with fewer than {enough} rows: {few:,} of {len(sizes):,}; none of theirs can be kept apart, so "
            "no promise can be made of all clients"
        )
    if what == "two":
        single = int((rows[label].groupby(to_categories(rows[client])).nunique() < 2).sum())
        if single:
            said.append(f"clients with rows of one class only: {single:,} of {len(sizes):,}")
    if what == "classes":
        counts = to_categories(rows[label]).value_counts()
        rare = [f"{shorten(name)} ({many})" for name, many in counts.items() if many < FEWEST_OF_A_CLASS]
        if rare:
            said.append(f"classes with fewer than {FEWEST_OF_A_CLASS} rows, too few to learn: {', '.join(rare[:5])}")
    said += [f"{seen.name}: {seen.remark}" for seen in survey if seen.remark and seen.name not in ignored]
    half = [seen.name for seen in survey if 0.5 < seen.empty <= 1 and seen.name not in (*ignored, label, client)]
    if half:
        said.append(f"more than half of the cells are empty in {', '.join(half)}")
    again = int(table.drop(columns=list(ignored)).duplicated().sum())
    if again > MANY_COPIES * len(table):
        said.append(
            f"{again:,} of {len(table):,} rows look like another: if they are copies, leave them out, since a copy "
            "that is kept apart is no row that nobody has seen"
        )
    return said


def suitable_kinds(values: pd.Series, what: str) -> tuple[str, ...]:
    """What can be asked for of a label."""
    if what == "two":
        return tuple(kind for kind in TASKS if kind not in OF_AMOUNTS)
    amounts = OF_AMOUNTS if pd.api.types.is_numeric_dtype(values) else ()
    return (*OF_CLASSES, *amounts, "custom") if what == "classes" else (*amounts, "custom")


def propose_bound(kind: str, values: pd.Series) -> float:
    """A bound to begin with: a rate, or an error in the label's unit by how far labels lie apart."""
    if kind == "mean-error":
        return float(f"{PART_OF_DEVIATION * values.std():.2g}")
    if kind == "absolute-error":
        return float(f"{PART_OF_SPREAD * (values - values.median()).abs().mean():.2g}")
    return BOUNDS.get(kind, 0.1)


def parse_value(values: pd.Series, wanted: str, flag: str) -> Any:
    """The value of a column that a word of the command line means, as a file of settings writes it."""
    kept = [plain(value) for value in pd.unique(values.dropna())]
    found = [value for value in kept if str(value) == wanted] or [
        value for value in kept if str(value).lower() == wanted.lower()
    ]
    if len(found) != 1:
        few = ", ".join(repr(str(value)) for value in sorted(kept, key=str)[:8])
        raise ValueError(f"{flag} must be a value of {values.name!r}, but is {wanted!r}; values are {few}")
    return found[0]


def shorten(word: str, longest: int = 24) -> str:
    """A word, cut off where it is long."""
    return word if len(word) <= longest else word[: longest - 1] + "…"


def summarize_values(values: pd.Series, most: int = 3) -> str:
    """The most frequent values with their shares, or the range of numbers."""
    filled = values.dropna()
    if pd.api.types.is_float_dtype(filled) and filled.nunique() > most:
        return f"{filled.min():g} to {filled.max():g}"
    shares = to_categories(filled).value_counts(normalize=True)
    told = [f"{shorten(value)} {share:.0%}" for value, share in shares.iloc[:most].items()]
    return ", ".join(told) + (" …" if len(shares) > most else "")
