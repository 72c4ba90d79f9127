"""Part: an optional part of a round, with a state of its own and hooks into the server step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Array, Bool, Int

from softswitch.methods.messages import Decision, Reports
from softswitch.problem.parameters import Params
from softswitch.support.arrays import select

Decide = Callable[[Any, Reports], tuple[Decision, Any]]
"""From the state of a method and the reports of a round to the decision and the method's next state."""


class Round(NamedTuple):
    """A round between its two exchanges."""

    k: Int[Array, ""]  # number of the round
    clients: Int[Array, " m"]  # I_k, the participants
    reports: Reports  # what they reported
    trusted: Reports  # the reports as the server uses them: trimmed if some clients may be Byzantine
    decision: Decision  # the method's decision
    method_state: Any  # state of the method after it
    parts: dict[str, Any]  # state of the optional parts after the reports, by name


class Update(NamedTuple):
    """The result of a round's second exchange."""

    direction: Params  # Σ r_i u_i, or another combination of the u_i
    directions: Params | None = None  # every u_i, stacked along the first axis, if they are needed; else None
    returned: Bool[Array, " m"] | None = None  # who returned a direction, if not all that reported did
    at_clients: Any = None  # state of all clients after the round, if they have one; else None
    traffic: Any = None  # bytes sent up and down, each in two parts, if messages are compressed; else None


class Part:
    """An optional part of a round. A hook that a part does not override changes nothing.

    Parts that are off are not in the list that the server step is given, so they leave no trace in the state or in
    the compiled program.
    """

    name: ClassVar[str]
    """Key of the part's state in ``State.parts``."""
    compares: ClassVar[bool] = False
    """Whether ``compare`` is defined."""
    must_be_finite: ClassVar[bool] = False
    """Whether a value of its state that is not finite means that the run has diverged."""

    def init(self, params: Params, clients: int, constraints: int, statistics: int | None) -> Any:
        """Return the state before round 0; None for a part without a state."""
        return None

    def hear(self, state: Any, k: Array, clients: Array, reports: Reports) -> Any:
        """Return the state after the reports of a round."""
        return state

    def trust(self, reports: Reports) -> Reports:
        """Return the reports as the server uses them."""
        return reports

    def wrap(self, decide: Decide, state: Any, clients: Array) -> Decide:
        """Return a decision that includes this part."""
        return decide

    def redirect(self, state: Any, decision: Decision, direction: Params, update: Update) -> tuple[Params, Any]:
        """Return the direction of the server's step, and the state of the part if that step is taken."""
        return direction, state

    def may_average(self, state: Any) -> Any:
        """Return whether the iterate may join the average of feasible iterates."""
        return True

    def move(self, state: Any, before: Params, after: Params) -> Any:
        """Return the state of the part after the step between two iterates."""
        return state

    def settle(self, taken: Bool[Array, ""], new: Any, old: Any) -> Any:
        """Return the part's state after the round: ``new`` if the server took its step, else ``old``."""
        return select(taken, new, old)

    def compare(self, state: Any, played: Round, update: Update, step: Params) -> Any:
        """Return the state after the parameters changed by ``step``."""
        return state

    def record(self, state: Any, k: Array) -> dict[str, Any]:
        """Return further entries of the round's record."""
        return {}


def active_state(states: tuple[Any, ...], feasible: Bool[Array, ""]) -> Any:
    """Return the state of the function on which a round descends: of one state for both, or of one for each."""
    return states[0] if len(states) == 1 else select(feasible, *states)


def replace_active(states: tuple[Any, ...], feasible: Bool[Array, ""], new: Any) -> tuple[Any, ...]:
    """Return the states with a new one of the function on which a round descends."""
    if len(states) == 1:
        return (new,)
    return select(feasible, new, states[0]), select(~feasible, new, states[1])


class PreviousIterate(Part):
    """w_{k−1}, if reports at w_k are compared with those at w_{k−1}."""

    name = "previous"

    def init(self, params: Params, clients: int, constraints: int, statistics: int | None) -> Any:
        """Return w_0."""
        return params

    def move(self, state: Any, before: Params, after: Params) -> Any:
        """Return the iterate before the step."""
        return before
