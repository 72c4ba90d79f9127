"""Rounds in violation: how many of a run's iterates have a client above the tolerance."""

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
        evaluated: in how many rounds w_k was looked at on all training rows.
        violated: how many of those had G(w_k) above the tolerance.
        late_evaluated: how many of those rounds lie in the second half of the run.
        late_violated: how many of these had.
        rounds: K.
        reported: in how many rounds the largest report was above the tolerance: of the round's participants, on
            batches, whose maximum lies above the truth for many clients and misses those not drawn.
        first_met: the first round looked at in which G(w_k) was within it; None: never.
    """

    evaluated: int
    violated: int
    late_evaluated: int
    late_violated: int
    rounds: int
    reported: int
    first_met: int | None

    @property
    def share(self) -> float:
        """Of the rounds that were looked at, the share in violation."""
        return self.violated / self.evaluated


def violations(result: Result) -> Violations:
    """Count the rounds in violation of a run that looked at all data now and then."""
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
    """A row a seed."""
    rows = []
    for result in results:
        found = violations(result)
        rows.append({**labels, "seed": result.seed, **vars(found), "violated_share": found.share})
    return rows


def fewer_violations(way: str, found: Mapping[str, Sequence[Result]], own: str, others: Sequence[str]) -> list[Claim]:
    """Whether one method's iterates violate in fewer rounds than each of the others', beyond the paired interval."""
    shares = {label: [violations(result).share for result in found[label]] for label in (own, *others)}
    claims = []
    for other in others:
        more = np.array(shares[other]) - np.array(shares[own])
        told = f"{_share(shares[own])} of the iterates against {_share(shares[other])}"
        told += f", more by {more.mean():.2f} ± {half_interval(more):.2f} (95%, paired)"
        held = bool(more.mean() > half_interval(more))
        claims.append(Claim(f"{way}: {own} has fewer rounds in violation than {other}", held, told))
    return claims


def met_early(way: str, results: Sequence[Result]) -> Claim:
    """Whether every seed's iterate has been within the tolerance after a tenth of the rounds."""
    counted = [violations(result) for result in results]
    held = all(v.first_met is not None and v.first_met <= v.rounds / 10 for v in counted)
    first = ", ".join("never" if v.first_met is None else str(v.first_met) for v in counted)
    return Claim(
        f"{way}: Softmax SGM comes to feasibility rapidly, "
        f"G(w_k) <= {results[0].method.tolerance:g} in the first tenth",
        held,
        f"first in round {first} of {counted[0].rounds}; "
        f"{np.mean([v.late_violated / v.late_evaluated for v in counted]):.0%} of the later half in violation",
    )


def _share(values: Sequence[float]) -> str:
    return f"{np.mean(values):.0%}"
