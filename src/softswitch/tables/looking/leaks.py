"""Columns that tell the label by themselves, and columns that say the client again."""

from __future__ import annotations

import numpy as np
import pandas as pd

from softswitch.support.ranks import auc
from softswitch.tables.cells import is_text
from softswitch.tables.features import as_words
from softswitch.tables.moments import moments_of, tells_moments

TOO_GOOD = 0.99
"""What a column tells by itself from which on it is most likely a copy of the label, or known only after it."""
LOOKED_AT = 20_000
"""Rows, at most."""
BINS = 50
FEWEST = 10
"""Rows of a class, fewer of which tell nothing."""


def tells_label(values: pd.Series, label: pd.Series, what: str) -> tuple[float, str]:
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


def says_again(values: pd.Series, client: pd.Series) -> bool:
    """Whether a column says the client in other words: each of its values goes with one client, and the reverse."""
    many = client.nunique()
    if many < 3 or values.nunique() != many or values.isna().any():
        return False
    pairs = pd.DataFrame({"one": as_words(values).to_numpy(), "other": as_words(client).to_numpy()})
    return len(pairs.drop_duplicates()) == many


def _levels(values: pd.Series) -> tuple[np.ndarray, np.ndarray | None]:
    """The column as level numbers, empty cells are one; and as numbers, where it holds such."""
    if tells_moments(values):
        moments = moments_of(values)
        days = np.where(np.isnan(moments.days), 0, moments.days) + np.nan_to_num(moments.hours) / 24
        numbers = np.where(values.isna(), np.nan, days)
    elif is_text(values) or pd.api.types.is_bool_dtype(values):
        return pd.factorize(as_words(values).where(values.notna()), use_na_sentinel=False)[0], None
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
