"""Part: the base class of optional parts of a round, with a state and hooks into the server step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Array, Bool, Int

from softswitch.methods.messages import Decision, Reports
from softswitch.problem.parameters import Params
from softswitch.support.arrays import select

Decide = Callable[[Any, Reports], tuple[Decision, Any]]  # ``Method.decide``: (state, reports) -> (decision, state)


class Round(NamedTuple):
    """A round after the clients' reports and the decision, before their updates."""

    k: Int[Array, ""]  # number of the round, from 0
    clients: Int[Array, " m"]  # I_k, the indices of the participants
    reports: Reports  # their reports
    trusted: Reports  # the reports as the server uses them: trimmed if some clients may be Byzantine
    decision: Decision  # the method's decision
    method_state: Any  # state of the method after the decision
    parts: dict[str, Any]  # state of the optional parts after the reports, by name


class Update(NamedTuple):
    """The clients' updates of a round, as the server receives them."""

    direction: Params  # Σ r_i u_i, or another combination of the u_i
    directions: Params | None = None  # every u_i, stacked along the first axis, if a part needs them; else None
    returned: Bool[Array, " m"] | None = None  # whether each client returned a direction; None: all that reported did
    at_clients: Any = None  # state of all clients after the round, if ``Method.at_clients`` is set; else None
    traffic: Any = None  # bytes (up, down), each as by ``split_byte_counts``, if messages are compressed; else None


class Part:
    """Base class of optional parts of a round. A hook that a subclass does not override changes nothing.

    Only active parts are passed to the server step, so that others do not appear in the state or the compiled program.
    """

    name: ClassVar[str]
    """Key of the part's state in ``State.parts``."""
    must_be_finite: ClassVar[bool] = False
    """Whether NaN or infinity in the part's state means that the run has diverged."""

    def init(self, params: Params, clients: int, constraints: int, statistics: int | None) -> Any:
        """Return the state before round 0, or None for none; ``statistics`` is the number of pooled sums, or None."""
        return None

    def hear(self, state: Any, k: Array, clients: Array, reports: Reports) -> Any:
        """Return the state after the reports of round k by the participants ``clients``."""
        return state

    def trust(self, reports: Reports) -> Reports:
        """Return the reports as the server step and the record use them, such as trimmed ones."""
        return reports

    def wrap(self, decide: Decide, state: Any, clients: Array) -> Decide:
        """Return a function of the same type as ``decide``, which calls it with other reports or changes its result."""
        return decide

    def redirect(self, state: Any, decision: Decision, direction: Params, update: Update) -> tuple[Params, Any]:
        """Return the direction for the server optimizer, and the part's next state, which is kept if the step is taken.

        ``direction`` is the weighted sum of ``update``, the second exchange of the round.
        """
        return direction, state

    def may_average(self, state: Any) -> Any:
        """Return whether a feasible iterate may join the average, a bool or a traced one."""
        return True

    def move(self, state: Any, before: Params, after: Params) -> Any:
        """Return the state if the server steps from ``before`` (w_k) to ``after`` (w_{k+1})."""
        return state

    def settle(self, taken: Bool[Array, ""], new: Any, old: Any) -> Any:
        """Return the part's state after the round: ``new`` if the server took its step, else ``old``."""
        return select(taken, new, old)

    def compare(self, state: Any, played: Round, update: Update, before: Params, after: Params) -> Any:
        """Return the state after the round, which changed the parameters from ``before`` (w_k) to ``after``."""
        return state

    def record(self, state: Any, k: Array) -> dict[str, Any]:
        """Return fields of the round's ``Record`` that this part adds, by name."""
        return {}


def active_state(states: tuple[Any, ...], feasible: Bool[Array, ""]) -> Any:
    """Return the state for the function on which a round descends, from (shared,) or (objective, constraint)."""
    return states[0] if len(states) == 1 else select(feasible, *states)


def replace_active(states: tuple[Any, ...], feasible: Bool[Array, ""], new: Any) -> tuple[Any, ...]:
    """Return ``states`` with the one that ``active_state`` selects replaced by ``new``."""
    if len(states) == 1:
        return (new,)
    return select(feasible, new, states[0]), select(~feasible, new, states[1])


class PreviousIterate(Part):
    """The previous iterate w_{k−1}, for methods and memories that need reports of the same batches there."""

    name = "previous"

    def init(self, params: Params, clients: int, constraints: int, statistics: int | None) -> Any:
        """Return the start w_0."""
        return params

    def move(self, state: Any, before: Params, after: Params) -> Any:
        """Return the iterate before the step, which is the previous one in the next round."""
        return before
