"""Rounds in violation: iterates of a run with a client above the tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from softswitch.results.result import Result
from softswitch_experiments.paper.experiment import Claim, Row
from softswitch_experiments.paper.study import half_interval


@dataclass(frozen=True)
class Violations:
    """How often G(w_k) = max_i g_i(w_k) was above the tolerance.

    Attributes:
                reported: Rounds in which the largest report was above the tolerance. Reports come from the
            participants' batches: their maximum is biased upwards, and misses clients that were not drawn.
    """

    evaluated: int  # number of rounds in which w_k was evaluated on all training rows
    violated: int  # number of these with G(w_k) above the tolerance
    late_evaluated: int  # evaluated rounds in the second half of the run
    late_violated: int  # number of these with G(w_k) above the tolerance
    rounds: int  # K
    reported: int
    first_met: int | None  # first evaluated round with G(w_k) within the tolerance, if any

    @property
    def share(self) -> float:
        """Share of the evaluated rounds in violation."""
        return self.violated / self.evaluated


def count_violations(result: Result) -> Violations:
    """Count the rounds in violation of a run with evaluations."""
    history, tolerance = result.history, result.method.tolerance
    above, late = history.full.constraint > tolerance, history.full_rounds >= len(history) / 2
    met = history.full_rounds[~above]
    return Violations(
        evaluated=len(above),
        violated=int(above.sum()),
        late_evaluated=int(late.sum()),
        late_violated=int((above & late).sum()),
        rounds=len(history),
        reported=int((history.constraint > tolerance).sum()),
        first_met=int(met[0]) if len(met) else None,
    )


def violation_rows(results: Sequence[Result], **labels: Any) -> list[Row]:
    """Return a row per seed."""
    counts = [(result.seed, count_violations(result)) for result in results]
    return [{**labels, "seed": seed, **vars(count), "violated_share": count.share} for seed, count in counts]


def fewer_violations(
    scheme: str, runs: Mapping[str, Sequence[Result]], method: str, others: Sequence[str]
) -> list[Claim]:
    """Test whether a method has fewer rounds in violation than each other method, beyond the paired interval."""
    shares = {
        label: np.array([count_violations(result).share for result in runs[label]]) for label in (method, *others)
    }
    claims = []
    for other in others:
        more = shares[other] - shares[method]
        measured = (
            f"{shares[method].mean():.0%} of the iterates against {shares[other].mean():.0%}, more by "
            f"{more.mean():.2f} ± {half_interval(more):.2f} (95%, paired)"
        )
        held = bool(more.mean() > half_interval(more))
        claims.append(Claim(f"{scheme}: {method} has fewer rounds in violation than {other}", held, measured))
    return claims


def met_early(scheme: str, results: Sequence[Result]) -> Claim:
    """Test whether the iterate of every seed was within the tolerance in the first tenth of the rounds."""
    counts = [count_violations(result) for result in results]
    late = np.mean([count.late_violated / count.late_evaluated for count in counts])
    first = ", ".join("never" if count.first_met is None else str(count.first_met) for count in counts)
    return Claim(
        f"{scheme}: Softmax SGM comes to feasibility rapidly, "
        f"G(w_k) <= {results[0].method.tolerance:g} in the first tenth",
        all(count.first_met is not None and count.first_met <= count.rounds / 10 for count in counts),
        f"first in round {first} of {counts[0].rounds}; {late:.0%} of the later half in violation",
    )
