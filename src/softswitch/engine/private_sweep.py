"""Sweeps whose clients keep their rows private: what each run costs, and what all of them cost together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from softswitch.engine.private import PrivatePlan, dearest, solve_privately
from softswitch.engine.request import RunSettings
from softswitch.methods.base import Method
from softswitch.oracles.options import Logging, Sampling
from softswitch.privacy.accounting import compute_epsilon
from softswitch.privacy.checks import check_private
from softswitch.privacy.settings import Drawing, NoiseLevels, RecordPrivacy, Releases
from softswitch.results.callbacks import ProgressBar
from softswitch.results.result import Result
from softswitch.support.text import format_number


class TotalPrivacy(NamedTuple):
    """What all runs of a sweep tell of any single row together.

    Every run looks at the same rows, so that what they cost adds up. It is counted for a row of the client that told
    most in each run, and for noise that each run draws for itself, as ``PrivateClient`` does. Simulated noise comes
    from the seed, and rules share it.

    Attributes:
        epsilon: ε of all runs together,
        delta: and δ.
        runs: how many there are.
    """

    epsilon: float
    delta: float
    runs: int

    def __str__(self) -> str:
        return (
            f"all {self.runs} runs look at the same rows: together ε = {format_number(self.epsilon)}, δ = "
            f"{self.delta:.2g}; "
            "whoever chooses among them pays for all of them"
        )


def sweep_privately(
    each: Sequence[tuple[Any, Any, Any, tuple[int, ...]]],
    methods: Mapping[str, Method],
    privacy: RecordPrivacy,
    sampling: Sampling,
    settings: RunSettings,
    progress: bool | None,
) -> tuple[dict[str, tuple[Result, ...]], TotalPrivacy]:
    """Every rule with every seed, one after the other, each as ``solve`` would run it; and what all of it costs.

    Args:
        each: problem, clients, held-out rows (none) and seeds that go together.
        methods: by their labels.
        privacy: how rows are kept private, in each run.
        sampling: which clients take part.
        settings: of each run.
        progress: whether to show a progress bar.
    """
    for _, clients, _, _ in each:
        check_private(clients, privacy, "compiled")
    runs = [(problem, clients, seed) for problem, clients, _, seeds in each for seed in seeds]
    found: dict[str, tuple[Result, ...]] = {}
    spent: list[tuple[Result, PrivatePlan]] = []
    with ProgressBar(len(methods) * len(runs), progress) as bar:
        for label, method in methods.items():
            own = []
            for problem, clients, seed in runs:
                own.append(
                    solve_privately(
                        problem, clients, method, privacy, sampling, settings, seed, Logging(progress=False)
                    )
                )
                bar.update(len(spent) + len(own), f"{len(methods)} rules × {len(runs)} seeds")
            found[label], spent = tuple(result for result, _ in own), spent + own
    return found, _together(spent, privacy.delta)


def _together(spent: Iterable[tuple[Result, PrivatePlan]], delta: float) -> TotalPrivacy:
    """Runs with the same noise are counted as one long run; ε and δ of those with other noise are added."""
    releases: dict[tuple[NoiseLevels, Drawing], Releases] = {}
    runs = 0
    for result, plan in spent:
        assert result.privacy is not None
        kind, runs = (plan.levels, dearest(plan.drawings)), runs + 1
        most = [max(kinds) for kinds in zip(*result.privacy.releases, strict=True)]
        releases[kind] = Releases(*map(sum, zip(releases.get(kind, Releases()), most, strict=True)))
    epsilon = sum(compute_epsilon(own, levels, drawing, delta) for (levels, drawing), own in releases.items())
    return TotalPrivacy(epsilon, delta * len(releases), runs)
