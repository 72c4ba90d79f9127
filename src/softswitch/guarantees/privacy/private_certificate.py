"""A certificate by rows that stay private: each client tells one sum with noise of each function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from softswitch.clients.private.record_privacy import RecordPrivacy
from softswitch.clients.private.releases import Drawing, NoiseLevels, Releases
from softswitch.clients.private.secret_noise import secret_normals
from softswitch.guarantees.privacy.accountant import epsilon_of, levels_for
from softswitch.guarantees.privacy.noised_limits import noised_interval
from softswitch.guarantees.unseen_rows.intervals import ErrorLevels, unknown
from softswitch.problem.ranges import Range, ends
from softswitch.results.certificate import Interval

ONE = Releases(judgings=1)
"""What a certificate tells of each client's held-out rows."""
ALL_ROWS = Drawing("poisson", 1.0)


class CertificateNoise(NamedTuple):
    """What a certificate costs.

    Attributes:
        multiplier: the deviation of the noise over the most that a row can change.
        epsilon: ε of each client's held-out rows.
        delta: δ.
    """

    multiplier: float
    epsilon: float
    delta: float


def certificate_noise(privacy: RecordPrivacy) -> CertificateNoise:
    """The noise for one certificate, all of the budget spent on it; raise where sizes are no public matter.

    Args:
        privacy: the budget of held-out rows, or the noise multiplier.
    """
    if not privacy.public_sizes:
        raise ValueError(
            "a certificate needs to know how many rows it rests on: public_sizes must be True in the privacy of the "
            "held-out rows"
        )
    if privacy.noise is not None:
        multiplier = privacy.noise
    else:
        alone = RecordPrivacy(
            epsilon=privacy.epsilon, delta=privacy.delta, report_share=1e-6, judging_share=1e-6, sampling="poisson"
        )
        multiplier = levels_for(alone, Releases(steps=1), ALL_ROWS).step
    spent = epsilon_of(ONE, NoiseLevels(1.0, 1.0, multiplier, 1.0), ALL_ROWS, privacy.delta)
    if privacy.noise is not None and privacy.epsilon is not None and spent > privacy.epsilon:
        raise ValueError(
            f"noise = {privacy.noise:g} spends ε = {spent:.3g} on one certificate, more than epsilon = "
            f"{privacy.epsilon:g}: raise the noise, or leave it out, and it is found"
        )
    return CertificateNoise(multiplier, spent, privacy.delta)


def private_intervals(
    by_row: np.ndarray,
    elsewhere: np.ndarray,
    multiplier: float,
    levels: ErrorLevels,
    ranges: Sequence[Range | None],
) -> list[Interval]:
    """Intervals of f and then g at one client, of which only sums with noise are used.

    Each value counts by its distance from its range's lower end in units of the range, and at most 1: a row changes
    all sums together by at most the root of their number. How many rows a function concerns is told as it is, so that
    it must not depend on the model: one could be made up on which chosen rows are not finite. It is taken from values
    at other parameters, and a row that is not finite at the model's counts as the upper end. An objective whose range
    is not known is left out.

    Args:
        by_row: the functions' values on its rows at the model's parameters; rows × functions.
        elsewhere: the same at parameters that nobody chose.
        multiplier: the noise multiplier.
        levels: the error probabilities, and the tolerance.
        ranges: of each function on a row; those of constraints must be known.
    """
    if any(bounds is None for bounds in ranges[1:]):
        raise ValueError("a private certificate needs the ranges of constraints on a row: constraint_range")
    noise = multiplier * float(np.sqrt(sum(bounds is not None for bounds in ranges)))
    found = []
    columns = zip(by_row.T, elsewhere.T, ranges, secret_normals(len(ranges)), strict=True)
    for values, at_others, bounds, own in columns:
        rows = values[~(np.isnan(at_others) | np.isneginf(at_others))]
        if bounds is None or not len(rows):
            found.append(unknown())
            continue
        low, high = ends(bounds)
        told = np.where(np.isfinite(rows), rows, high)
        total = float(np.clip((told - low) / (high - low), 0, 1).sum())
        found.append(noised_interval(total + noise * float(own), len(rows), noise, levels, bounds))
    return found
