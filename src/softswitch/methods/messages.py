"""Messages of a round: the reports that a method reads, and its decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from array_api_compat import array_namespace

if TYPE_CHECKING:  # it would import JAX, which not every client has
    from jaxtyping import Array, Bool, Float, Int


class Reports(NamedTuple):
    """Reports of a round's m participants at w_k, which a method reads to decide the round.

    Attributes:
        objective: f_i on a fresh batch; −∞ for a client that has none.
        constraint: g_i, one column for each of the c constraints; positive is a violation, −∞ is none.
        pooled: The c constraints of the participants' summed statistics; None for plain constraints.
        mask: Whether each client reported; other entries are ignored.
        metrics: Further values by name, which are recorded only.
        sums: The s additive statistics of a pooled constraint, times the client's number of rows; None for a plain one.
        bit: Switch bit of a round that is already decided, whose remaining clients are weighted again; else None.
        stand_for: Number of clients that each client represents in a mean; None if all represent one.
        clients: Indices of the participants, if ``Method.knows_clients``; else None.
        earlier: f, g and sums of the same batches at w_{k−1}, if ``Method.compares`` or for a corrected memory; else
            None.
        key: JAX random key, if ``Method.draws_clients``; else None.
    """

    objective: Float[Array, " m"]
    constraint: Float[Array, "m c"]
    pooled: Float[Array, " c"] | None
    mask: Bool[Array, " m"]
    metrics: dict[str, Float[Array, " m"]] = {}  # noqa: RUF012 (a NamedTuple's default, never written to)
    sums: Float[Array, "m s"] | None = None
    bit: Bool[Array, ""] | None = None
    stand_for: Float[Array, " m"] | None = None
    clients: Int[Array, " m"] | None = None
    earlier: tuple[Float[Array, " m"], Float[Array, "m c"], Float[Array, "m s"] | None] | None = None
    key: Any = None

    @property
    def has_objective(self) -> Bool[Array, " m"]:
        """Whether each client reported an objective, other than −∞. NaN counts: the run then ends as diverged."""
        xp = array_namespace(self.objective)
        return xp.logical_and(self.mask, self.objective != -xp.inf)

    @property
    def has_constraint(self) -> Bool[Array, "m c"]:
        """Whether each client reported each constraint, with a value other than −∞."""
        xp = array_namespace(self.constraint)
        return xp.logical_and(self.mask[:, None], self.constraint != -xp.inf)

    @property
    def void(self) -> Bool[Array, ""]:
        """Whether no client reported an objective, or none a constraint. The server takes no step in such a round."""
        xp = array_namespace(self.objective)
        return ~(xp.any(self.has_objective) & xp.any(self.pairs[1]))

    @property
    def pairs(self) -> tuple[Array, Array]:
        """Constraint values of all pairs (client, constraint), and whether each was reported.

        Those of a single constraint are vectors: XLA is slow on matrices of one column.
        """
        if self.constraint.shape[1] > 1:
            return self.constraint, self.has_constraint
        return self.constraint[:, 0], self.has_constraint[:, 0]

    def local_losses(self, loss: LocalLoss) -> Float[Array, " m"]:
        """Return each client's local loss at w_k: a·f_i + <b_i, g_i> + c·Σ max(0, g_i − ε), where missing values are 0.

        Args:
            loss: Coefficients a, b, c and ε of the participants.
        """
        xp = array_namespace(self.objective)
        objective = xp.where(self.has_objective, self.objective, 0)
        constraint = xp.where(self.has_constraint, self.constraint, 0)
        excess = xp.where(self.has_constraint, xp.maximum(constraint - loss.tolerance, 0), 0)
        penalty = loss.penalty * xp.sum(excess, axis=1)
        return loss.objective * objective + xp.sum(loss.constraint * constraint, axis=1) + penalty


class LocalLoss(NamedTuple):
    """The function that a client minimises in its local steps: a_i·f_i + <b_i, g_i> + c·Σ max(0, g_i − ε).

    Attributes:
        objective: Coefficient a of the objective: one for all clients, or one for each.
        constraint: Coefficients b of the constraints, one row for each client and one column for each constraint.
        penalty: Coefficient c >= 0 of the violations.
        tolerance: ε, in units of g.
        linear: s_i of a further term <s_i, w>, in the structure of the parameters; None if there is none.
        pull: π of a further term (π/2)·‖w − w_k‖²; None if there is none.
    """

    objective: Float[Array, ""] | Float[Array, " m"] | float
    constraint: Float[Array, "m c"]
    penalty: Float[Array, ""] | float
    tolerance: Float[Array, ""] | float
    linear: Any = None
    pull: Any = None

    @property
    def own(self) -> tuple[Any, Any, Any]:
        """Coefficients that differ between clients, as (a, b, s). a is None if all share it, s if there is none."""
        return (self.objective if getattr(self.objective, "ndim", 0) else None), self.constraint, self.linear

    def with_own(self, own: tuple[Any, Any, Any]) -> LocalLoss:
        """Return the local loss with other coefficients (a, b, s): of some clients, or of a single one.

        Args:
            own: Coefficients as in ``own``.
        """
        objective, constraint, linear = own
        objective = self.objective if objective is None else objective
        return self._replace(objective=objective, constraint=constraint, linear=linear)

    def of(self, place: int) -> LocalLoss:
        """Return the local loss of one participant, without ``linear``.

        Args:
            place: Index of the participant among the m participants.
        """
        objective, constraint, _ = self.own
        return self.with_own((None if objective is None else objective[place], constraint[place], None))


class Decision(NamedTuple):
    """The server's decision on a round's reports.

    Attributes:
        criterion: G_k, in units of g, which the switch compares with λ.
        feasible: Switch bit 1_k: whether the criterion is at most λ.
        weights: r, the weight of each client's direction; they sum to 1, or to 0 if nothing was reported.
        local_loss: The functions that the clients minimise in their local steps.
        clients: Indices of the clients that compute updates, if the method draws them; weights and local losses are
            theirs. None: the participants.
    """

    criterion: Float[Array, ""]
    feasible: Bool[Array, ""]
    weights: Float[Array, " m"]
    local_loss: LocalLoss
    clients: Int[Array, " m"] | None = None
