"""What one run leaves to the next."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from softswitch.method.proximal import Stages
from softswitch.method.round import State
from softswitch.problem.domains import Domain, check_domain
from softswitch.results.result import Result
from softswitch.support import checks
from softswitch.support.arrays import structure_and_shapes

KEPT = ("optimizer", "average")
"""What a warm start may keep beside the last iterate."""


@dataclass(frozen=True, eq=False)
class WarmStart:
    """A run begins where another ended: at its last iterate.

    Attributes:
        state: what the server kept at the end of the run before.
        keep: what goes on from there: "optimizer", its state (moments, say) and the rule's memory; "average", the sum
            of feasible iterates, which the new ones join.
    """

    state: State
    keep: tuple[str, ...]

    @classmethod
    def after(cls, result: Result | None, keep: Collection[str]) -> WarmStart | None:
        """The warm start after a result; None for none."""
        if isinstance(keep, str) or not isinstance(keep, Collection):
            raise TypeError(f"keep must be a collection of words, such as ('optimizer',), but is {keep!r}")
        for word in keep:
            checks.one_of("keep", word, KEPT)
        if result is None:
            return None
        checks.expect("warm_start", result, Result)
        return cls(result.state, tuple(keep))

    def check(self, fresh: State, domain: Domain | None) -> None:
        """Raise where what is kept does not fit a run with such a state, or lies outside its domain."""
        if structure_and_shapes(fresh.params) != structure_and_shapes(self.state.params):
            raise ValueError(
                "warm_start must hold parameters of the problem's structure, shapes and dtypes "
                f"{structure_and_shapes(fresh.params)[1]}, but holds {structure_and_shapes(self.state.params)[1]}"
            )
        if "optimizer" in self.keep:
            wanted, given = (structure_and_shapes((state.optimizer, state.rule)) for state in (fresh, self.state))
            if wanted != given:
                raise ValueError(
                    "warm_start must come from a run with the same kind of rule and optimizer for its state to be "
                    "kept, but does not; leave 'optimizer' out of keep"
                )
        check_domain(domain, self.state.params)

    def into(self, fresh: State) -> State:
        """The state to begin with."""
        state = fresh._replace(params=self.state.params)
        if "optimizer" in self.keep:
            state = state._replace(optimizer=self.state.optimizer, rule=self.state.rule)
        if state.stages is not None:  # a stage begins there, with an average of its own
            return state._replace(stages=Stages.begun(self.state.params))
        if "average" in self.keep:
            state = state._replace(average=self.state.average)
        return state
