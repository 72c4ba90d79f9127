"""Consensus by ADMM: every client has a model of its own, and a price for being apart from the others'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from softswitch.method.at_clients.kept import AtClients, RoundAtClients
from softswitch.problem.parameters import Params
from softswitch.support import checks


@dataclass(frozen=True, kw_only=True)
class Consensus(AtClients):
    """One inexact iteration of consensus ADMM a round; κ_i is the price of client i's model u_i.

        u_i ≈ argmin h_i(u) + <κ_i, u − w_k> + (π/2) ‖u − w_k‖²,   by the local steps, from w_k
        κ_i ← κ_i + π (u_i − w_k);    it sends u_i + κ_i/π, whose weighted mean w_{k+1} is

    where the server takes plain steps.

    Attributes:
        pull: π > 0, in units of h per unit of w².
    """

    pull: float = 1.0  # type: ignore[misc]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pull", checks.real_number("pull", self.pull, above=0))

    def init(self, params: Params, clients: int, switches: bool) -> Any:
        """No price."""
        return jax.tree.map(lambda leaf: jnp.zeros((clients, *leaf.shape), leaf.dtype), params)

    def shift(self, own: Any, asked: RoundAtClients) -> Params:
        """κ_i."""
        price: Params = own
        return price

    def after(self, own: Any, asked: RoundAtClients, shift: Params | None, directions: Params) -> tuple[Params, Any]:
        """How far w_k is from what it sends, per step of the server; and its new price."""
        length = asked.step_size * asked.local_steps
        away = jax.tree.map(lambda u: -length * u, directions)  # u_i − w_k
        price = jax.tree.map(lambda old, gone: old + self.pull * gone, own, away)
        sent = jax.tree.map(lambda gone, new: -(gone + new / self.pull) / asked.server_step, away, price)
        return sent, price
