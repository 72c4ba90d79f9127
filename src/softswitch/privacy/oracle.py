"""Clients that tell nothing of their rows but clipped sums with noise."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, UInt32

from softswitch.data.client_data import Rows
from softswitch.data.sampling import choose_clients, words_to_choose
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.oracles.base import STATIC, Evaluation
from softswitch.oracles.client_batches import map_slices, sum_slices
from softswitch.oracles.losses import Losses
from softswitch.privacy.clipping import row_mix
from softswitch.privacy.draws import DrawnRows, PrivateChance, PrivateDraws, all_rows, each_by_itself, so_many
from softswitch.privacy.jax_clipping import summed_gradients, summed_values
from softswitch.privacy.noisy_reports import NoiseDeviations, NoisyOracle
from softswitch.problem.parameters import Params
from softswitch.support.arrays import weighted_sum


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PrivateOracle(NoisyOracle):
    """Clients that hold rows, clip what each of them says, add it up, and add noise.

    Attributes:
        rows: all clients' rows.
        counts: how many rows f and each g concern, as it is declared or was told with noise; 0: none, and the client
            has no such function. Clients × functions.
        taken: how many rows each client draws, where that is fixed.
        shares: which share of its rows a client draws.
        noise: how much noise there is.
        clip_value: how long what one row tells of f and all g is at most,
        clip_gradient: and its gradient.
        evaluation_key: for the noise on evaluations.
        secret: words that all draws of rows and noise depend on beside the run's seed; none in experiments, where
            whoever has the seed can take the noise off.
        losses: the problem's objective and constraint.
        constraints: how many constraints a client has.
        participants: m, how many clients take part in a round.
        local_steps: E.
        sampling: "all", "poisson" or "fixed".
        rate: each row's probability to be drawn.
        width: how many rows the largest client has.
        capacity: how many rows are drawn at most.
        slice_size: how many clients are computed side by side.
        judges: whether answers are judged; else all that is told of one is that it is not known.
    """

    rows: Rows
    counts: Float[Array, "n functions"]
    taken: Int[Array, " n"]
    shares: Float[Array, " n"]
    noise: NoiseDeviations
    clip_value: Float[Array, ""]
    clip_gradient: Float[Array, ""]
    evaluation_key: Key[Array, ""]
    secret: UInt32[Array, " words"]
    losses: Losses = field(metadata=STATIC)
    constraints: int = field(metadata=STATIC)
    participants: int = field(metadata=STATIC)
    local_steps: int = field(metadata=STATIC)
    sampling: str = field(metadata=STATIC)
    rate: float = field(metadata=STATIC)
    width: int = field(metadata=STATIC)
    capacity: int = field(metadata=STATIC)
    slice_size: int = field(metadata=STATIC)
    judges: bool = field(default=True, metadata=STATIC)

    @property
    def client_count(self) -> int:
        """n."""
        return int(self.counts.shape[0])

    @property
    def has_surrogate(self) -> bool:  # type: ignore[override]
        """Whether the constraint has a stand-in to descend on."""
        return self.losses.has_surrogate

    def draw(self, key: Array) -> PrivateDraws:
        """Draw I_k, and what its members draw by."""
        n, m = self.client_count, self.participants
        words = jax.random.bits(jax.random.fold_in(key, 0), (words_to_choose(n, m),), jnp.uint32)
        return self.draw_for(choose_clients(words, n, m), self.draw_randomness(key))

    def draw_randomness(self, key: Array) -> PrivateChance:
        """Noise and keys for each participant; made in bulk, since each generator takes long to compile."""
        m, steps = self.participants, self.local_steps
        key = with_secret(jax.random.fold_in(key, 1), self.secret)
        for_noise, for_rows, for_steps = jax.random.split(key, 3)
        noise = jax.random.normal(for_noise, (m, 1 + self.constraints), self.counts.dtype)
        rows = None if self.sampling == "all" else jax.random.split(for_rows, (m, 1 + steps))
        return PrivateChance(noise, rows, jax.random.split(for_steps, (m, steps)))

    def draw_for(self, clients: Int[Array, " m"], randomness: Any) -> PrivateDraws:
        """The given participants, each with its key."""
        return PrivateDraws(clients, randomness)

    def report(self, params: Params, draws: Any) -> tuple[Reports, Array]:
        """f_i and g_i by rows drawn anew, clipped and with noise; clients keep what they told of g."""

        def one(its: tuple[Array, Any, Array]) -> Array:
            client, keys, noise = its
            drawn = self._drawn(client, None if keys is None else keys[0])
            return self._told(params, client, drawn, self.noise.report * noise, self.shares)

        chance = draws.chance
        told: Array = map_slices(one, (draws.clients, chance.row_keys, chance.report_noise), self.slice_size)
        objective, constraint = told[:, 0], told[:, 1:]
        return Reports(objective, constraint, None, jnp.ones(objective.shape, bool)), constraint

    def direction(
        self, params: Params, draws: Any, kept: Array, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Σ_i r_i u_i."""

        def in_slice(some: tuple[Any, ...]) -> Params:
            weights, everyone = some
            each = jax.vmap(lambda its: self._local(params, decision.local_loss, step_size, its))(everyone)
            return weighted_sum(each, weights)

        everyone = (draws.clients, draws.chance, kept, decision.local_loss.own)
        total: Params = sum_slices(in_slice, (decision.weights, everyone), self.slice_size)
        return total

    def directions(
        self, params: Params, draws: Any, kept: Array, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Every u_i by itself."""
        everyone = (draws.clients, draws.chance, kept, decision.local_loss.own)
        each: Params = map_slices(
            lambda its: self._local(params, decision.local_loss, step_size, its), everyone, self.slice_size
        )
        return each

    def _local(self, params: Params, loss: LocalLoss, step_size: Any, its: tuple[Any, ...]) -> Params:
        """u_i: the mean of E gradients along the way, each clipped row by row, on fresh rows and with its own noise."""
        client, chance, told, own = its
        mix, scale = row_mix(loss.with_own(own), told, self.counts[client])
        per_row = scale / self.shares[client]
        row_keys = None if chance.row_keys is None else chance.row_keys[1:]

        def step(total: Params, keys: tuple[Any, Array]) -> tuple[Params, None]:
            here = jax.tree.map(lambda w, s: w - jnp.asarray(step_size, w.dtype) * s, params, total)
            drawn = self._drawn(client, keys[0])
            batch = self.rows.take(drawn.indices, drawn.counted)
            summed = summed_gradients(self.losses, here, batch, drawn.counted, mix, self.clip_gradient)
            noised = _with_noise(summed, self.noise.step, keys[1])
            return jax.tree.map(lambda s, part: s + per_row.astype(s.dtype) * part, total, noised), None

        total, _ = lax.scan(step, jax.tree.map(jnp.zeros_like, params), (row_keys, chance.noise_keys))
        return jax.tree.map(lambda part: part / self.local_steps, total)

    def _drawn(self, client: Array, key: Any) -> DrawnRows:
        if self.sampling == "all":
            return all_rows(self.rows, client, self.width)
        if self.sampling == "poisson":
            return each_by_itself(self.rows, client, self.width, self.capacity, key, self.rate)
        return so_many(self.rows, client, self.width, self.capacity, key, self.taken[client])

    def _told(self, params: Params, client: Array, drawn: DrawnRows, noise: Array, shares: Array) -> Array:
        """f and g of one client: a sum with noise, over how many rows there would be; −∞ where there are none."""
        batch = self.rows.take(drawn.indices, drawn.counted)
        summed = summed_values(self.losses, params, batch, drawn.counted, self.clip_value)
        noised = summed + noise.astype(summed.dtype)
        counts = (self.counts[client] * shares[client]).astype(noised.dtype)
        return jnp.where(counts > 0, noised / jnp.where(counts > 0, counts, 1), -jnp.inf)

    def without_final_evaluation(self) -> PrivateOracle:
        """The same clients, none of which judges an answer."""
        return replace(self, judges=False)

    def evaluate_params(self, params: Params) -> Evaluation:
        """f_i and g_i on all rows, clipped and with noise; asked again of the same parameters, the same."""
        if not self.judges:
            told = np.full(self.counts.shape, np.nan)
            return Evaluation(told[:, 0], told[:, 1:])
        bits = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))
        told = np.asarray(_judged(self, params, jax.random.fold_in(self.evaluation_key, zlib.crc32(bits))))
        return Evaluation(told[:, 0], told[:, 1:])


def with_secret(key: Array, secret: Array) -> Array:
    """The key, made to depend on secret words; without any it stays as it is.

    Args:
        key: a random key.
        secret: the words.
    """
    for i in range(secret.shape[0]):
        key = jax.random.fold_in(key, secret[i])
    return key


@jax.jit
def _judged(oracle: PrivateOracle, params: Params, key: Array) -> Array:
    everyone = jnp.arange(oracle.client_count, dtype=jnp.int32)

    def one(its: tuple[Array, Array]) -> Array:
        client, noise = its
        drawn = all_rows(oracle.rows, client, oracle.width)
        return oracle._told(params, client, drawn, oracle.noise.evaluation * noise, jnp.ones_like(oracle.shares))

    noise = jax.random.normal(key, oracle.counts.shape, oracle.counts.dtype)
    told: Array = map_slices(one, (everyone, noise), oracle.slice_size)
    return told


def _with_noise(tree: Any, deviation: Array, key: Array) -> Any:
    """The same with Gaussian noise of this deviation on every number."""
    flat, unravel = ravel_pytree(tree)
    noised: Any = unravel(flat + deviation.astype(flat.dtype) * jax.random.normal(key, flat.shape, flat.dtype))
    return noised
