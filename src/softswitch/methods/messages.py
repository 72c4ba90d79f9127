"""What a rule reads and what it answers: the reports of one round and the decision made from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from array_api_compat import array_namespace

if TYPE_CHECKING:  # it would import JAX, which not every client has
    from jaxtyping import Array, Bool, Float, Int


class Reports(NamedTuple):
    """The numbers that the sampled clients send in the first exchange of a round.

    Attributes:
        objective: f_i at w_k on client i's fresh batch; −∞ for a client that has none.
        constraint: g_i likewise; one column a constraint. A violation is positive.
        pooled: the constraints recomputed from all reporting clients' additive statistics, or None.
        mask: who reported; the others' entries are ignored.
        metrics: further numbers that clients tell by name, recorded and never used by a rule.
        sums: the additive statistics of a pooled constraint, times the client's rows; None for a plain one.
        bit: the switch bit, where the round is decided already: those who are left after it are weighed again.
        stand_for: for how many clients each of these stands, where some are asked more often than others: a rule that
            wants a mean weighs them by it. None: all alike.
        clients: whose reports these are, for a rule that remembers clients (``Rule.knows_clients``); else None.
        earlier: what the same batches gave at w_{k−1}, f, g and the sums, for a rule that compares (``Rule.compares``)
            and for a memory that is corrected; else None.
        key: a random key, for a rule that draws clients (``Rule.draws_clients``); else None.
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
        """Who reported an objective; NaN is one, and makes the round fail."""
        xp = array_namespace(self.objective)
        return xp.logical_and(self.mask, self.objective != -xp.inf)

    @property
    def has_constraint(self) -> Bool[Array, "m c"]:
        """Who reported which constraint."""
        xp = array_namespace(self.constraint)
        return xp.logical_and(self.mask[:, None], self.constraint != -xp.inf)

    @property
    def void(self) -> Bool[Array, ""]:
        """Whether nobody reported an objective, or nobody a constraint: the round then counts nothing."""
        xp = array_namespace(self.objective)
        return ~(xp.any(self.has_objective) & xp.any(self.pairs[1]))

    @property
    def pairs(self) -> tuple[Array, Array]:
        """What the criterion is made of: the numbers of all pairs (client, constraint), and which were reported."""
        return self.constraint, self.has_constraint

    def local_losses(self, loss: LocalLoss) -> Float[Array, " m"]:
        """Return each client's local loss by its report: a·f_i + <b_i, g_i> + c·Σ max(0, g_i − ε)."""
        xp = array_namespace(self.objective)
        objective = xp.where(self.has_objective, self.objective, 0)
        constraint = xp.where(self.has_constraint, self.constraint, 0)
        excess = xp.where(self.has_constraint, xp.maximum(constraint - loss.tolerance, 0), 0)
        penalty = loss.penalty * xp.sum(excess, axis=1)
        return loss.objective * objective + xp.sum(loss.constraint * constraint, axis=1) + penalty


class LocalLoss(NamedTuple):
    """What a client minimises in its local steps: a_i·f_i + <b_i, g_i> + c·Σ max(0, g_i − ε).

    Attributes:
        objective: a, the same for all or one a client.
        constraint: b, one row a client, one column a constraint.
        penalty: c.
        tolerance: ε.
        linear: s, one a client in the shape of the parameters, where clients keep something (``Rule.at_clients``): the
            part <s_i, w>, which is added to the rest; else None.
        pull: π, likewise: the part (π/2)·‖w − w_k‖².
    """

    objective: Float[Array, ""] | Float[Array, " m"] | float
    constraint: Float[Array, "m c"]
    penalty: Float[Array, ""] | float
    tolerance: Float[Array, ""] | float
    linear: Any = None
    pull: Any = None

    @property
    def own(self) -> tuple[Any, Any, Any]:
        """What differs from client to client, the clients first: a, or None where all have the same, b and s."""
        return (self.objective if getattr(self.objective, "ndim", 0) else None), self.constraint, self.linear

    def with_own(self, own: tuple[Any, Any, Any]) -> LocalLoss:
        """The same with other parts of that: of some clients, or of a single one.

        Args:
            own: those parts.
        """
        objective, constraint, linear = own
        objective = self.objective if objective is None else objective
        return self._replace(objective=objective, constraint=constraint, linear=linear)

    def of(self, place: int) -> LocalLoss:
        """What the participant in this place minimises; ``linear`` is left out, which no client elsewhere has.

        Args:
            place: which of them.
        """
        objective, constraint, _ = self.own
        return self.with_own((None if objective is None else objective[place], constraint[place], None))


class Decision(NamedTuple):
    """What the server makes of a round's reports.

    Attributes:
        criterion: the number that the switch compares with λ.
        feasible: the switch bit 1_k: whether the criterion is at most λ. The round then joins the feasible set S.
        weights: r, the server's weight of each client's direction; sums to 1, or to 0 in a void round.
        local_loss: what the clients minimise in their local steps.
        clients: who is asked for directions, where a rule draws them (``Rule.draws_clients``); weights and local
            losses are theirs. None: those who reported.
    """

    criterion: Float[Array, ""]
    feasible: Bool[Array, ""]
    weights: Float[Array, " m"]
    local_loss: LocalLoss
    clients: Int[Array, " m"] | None = None
