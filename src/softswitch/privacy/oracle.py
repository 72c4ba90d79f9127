"""PrivateOracle: clients that release only sums of clipped rows with Gaussian noise."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, UInt32

from softswitch.data.client_data import Rows
from softswitch.data.sampling import client_bit_count, sample_clients
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.oracles.base import STATIC, Evaluation, Oracle
from softswitch.oracles.evaluation import Losses, map_slices, sum_slices
from softswitch.privacy import jax_rows
from softswitch.privacy.jax_rows import DrawnRows, sum_clipped_gradients, sum_clipped_values
from softswitch.privacy.numpy_rows import mix_row_losses
from softswitch.problem.parameters import Params
from softswitch.support.arrays import weighted_sum


class NoiseDeviations(NamedTuple):
    """Standard deviations of the noise on each entry of a sum over rows, for each kind of release."""

    report: Any  # of f and g on drawn rows
    step: Any  # of a gradient on drawn rows
    evaluation: Any  # of f and g on all rows


class PrivateRandomness(NamedTuple):
    """Random numbers of a round's m participants."""

    report_noise: Float[Array, "m functions"]  # standard normal noise on f and each g
    row_keys: Key[Array, "m steps_and_report"] | None  # of the rows of the report and each step; None: all rows
    noise_keys: Key[Array, "m steps"]  # of the noise on the gradient of each step


class PrivateDraws(NamedTuple):
    """The random choices of one round: the indices of its participants, and their random numbers."""

    clients: Int[Array, " m"]
    randomness: PrivateRandomness


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PrivateOracle(Oracle):
    """Oracle of clients that clip the contribution of each row, sum them up and add Gaussian noise.

    Draws of rows and noise depend on the words in ``secret`` besides the seed of the run; without any, the noise can be
    reproduced from the seed.
    """

    rows: Rows
    counts: Float[Array, "n functions"]  # numbers of rows of f and each g, public or noisy; 0 for a missing function
    noise: NoiseDeviations
    clip_value: Float[Array, ""]
    clip_gradient: Float[Array, ""]
    evaluation_key: Key[Array, ""]
    secret: UInt32[Array, " words"]
    losses: Losses = field(metadata=STATIC)
    constraints: int = field(metadata=STATIC)
    participants: int = field(metadata=STATIC)
    local_steps: int = field(metadata=STATIC)
    rate: float = field(metadata=STATIC)  # probability with which a row is drawn
    width: int = field(metadata=STATIC)  # number of rows of the largest client
    capacity: int = field(metadata=STATIC)  # maximum number of drawn rows
    slice_size: int = field(metadata=STATIC)  # number of clients that are computed together
    evaluates: bool = field(default=True, metadata=STATIC)
    noise_setting: ClassVar[str] = "epsilon of the privacy, or the rows of the smallest clients"
    is_private: ClassVar[bool] = True
    has_surrogate = property(attrgetter("losses.has_surrogate"))
    client_count = property(lambda self: int(self.counts.shape[0]))

    @property
    def report_deviations(self) -> np.ndarray:
        """Standard deviation of the noise on each reported f and g, clients × functions; ∞ for missing functions."""
        return self._deviations(self.noise.report, self.rate * np.asarray(self.counts))

    @property
    def evaluation_deviations(self) -> np.ndarray:
        """Standard deviation of the noise on each evaluated f and g, clients × functions; ∞ for missing functions."""
        return self._deviations(self.noise.evaluation, np.asarray(self.counts))

    @staticmethod
    def _deviations(noise: Any, counts: np.ndarray) -> np.ndarray:
        return np.where(counts > 0, float(noise) / np.where(counts > 0, counts, 1), np.inf)

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the expected rows of a round for reports and for gradients, from public or noisy numbers of rows."""
        rows = round(self.participants * float(self.rate * np.asarray(self.counts).max(axis=1).mean()))
        return rows, self.local_steps * rows

    def draw(self, key: Array) -> PrivateDraws:
        """Draw the participants of a round, and their random numbers."""
        n, m = self.client_count, self.participants
        words = jax.random.bits(jax.random.fold_in(key, 0), (client_bit_count(n, m),), jnp.uint32)
        return PrivateDraws(sample_clients(words, n, m), self.draw_randomness(key))

    def draw_randomness(self, key: Array) -> PrivateRandomness:
        """Draw the noise and the random keys of all participants of a round."""
        m, steps = self.participants, self.local_steps
        key = with_secret(jax.random.fold_in(key, 1), self.secret)
        for_noise, for_rows, for_steps = jax.random.split(key, 3)
        noise = jax.random.normal(for_noise, (m, 1 + self.constraints), self.counts.dtype)
        rows = None if self.rate == 1 else jax.random.split(for_rows, (m, 1 + steps))
        return PrivateRandomness(noise, rows, jax.random.split(for_steps, (m, steps)))

    def draw_for(self, clients: Int[Array, " m"], randomness: Any) -> PrivateDraws:
        """Return the draws of given participants with the given random numbers."""
        return PrivateDraws(clients, randomness)

    def report(self, params: Params, draws: Any) -> tuple[Reports, Array]:
        """Return the noisy f_i and g_i on fresh rows, and g_i again, which ``direction`` uses."""

        def one(participant: tuple[Array, Any, Array]) -> Array:
            client, keys, noise = participant
            drawn = self._draw_rows(client, None if keys is None else keys[0])
            return self._noisy_values(params, client, drawn, self.noise.report * noise, self.rate)

        randomness = draws.randomness
        values = map_slices(one, (draws.clients, randomness.row_keys, randomness.report_noise), self.slice_size)
        objective, constraint = values[:, 0], values[:, 1:]
        return Reports(objective, constraint, None, jnp.ones(objective.shape, bool)), constraint

    def direction(
        self, params: Params, draws: Any, kept: Array, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Return Σ_i r_i u_i, the weighted sum of the participants' directions."""
        local_steps = jax.vmap(self._local_steps(params, decision.local_loss, step_size))

        def in_slice(part: tuple[Any, ...]) -> Params:
            weights, participants = part
            return weighted_sum(local_steps(participants), weights)

        participants = (draws.clients, draws.randomness, kept, decision.local_loss.own)
        return sum_slices(in_slice, (decision.weights, participants), self.slice_size)

    def directions(
        self, params: Params, draws: Any, kept: Array, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Return the direction u_i of every participant, stacked along the first axis."""
        participants = (draws.clients, draws.randomness, kept, decision.local_loss.own)
        return map_slices(self._local_steps(params, decision.local_loss, step_size), participants, self.slice_size)

    def _local_steps(self, params: Params, loss: LocalLoss, step_size: Any) -> Callable[[Any], Params]:
        """Return the function that computes u_i: the mean of E gradients, each on fresh rows and with fresh noise."""

        def steps(participant: tuple[Any, ...]) -> Params:
            client, randomness, constraint, own = participant
            mix, scale = mix_row_losses(loss.with_own(own), constraint, self.counts[client])
            per_row = scale / self.rate
            row_keys = None if randomness.row_keys is None else randomness.row_keys[1:]

            def step(total: Params, keys: tuple[Any, Array]) -> tuple[Params, None]:
                iterate = jax.tree.map(lambda w, s: w - jnp.asarray(step_size, w.dtype) * s, params, total)
                drawn = self._draw_rows(client, keys[0])
                batch = self.rows.take(drawn.indices, drawn.counted)
                summed = sum_clipped_gradients(self.losses, iterate, batch, drawn.counted, mix, self.clip_gradient)
                flat, unravel = ravel_pytree(summed)
                noise = jax.random.normal(keys[1], flat.shape, flat.dtype)
                noisy = unravel(flat + self.noise.step.astype(flat.dtype) * noise)
                return jax.tree.map(lambda s, part: s + per_row.astype(s.dtype) * part, total, noisy), None

            total, _ = lax.scan(step, jax.tree.map(jnp.zeros_like, params), (row_keys, randomness.noise_keys))
            return jax.tree.map(lambda part: part / self.local_steps, total)

        return steps

    def _draw_rows(self, client: Array, key: Any) -> DrawnRows:
        if self.rate == 1:
            return jax_rows.all_rows(self.rows, client, self.width)
        return jax_rows.draw_poisson_sample(self.rows, client, self.width, self.capacity, key, self.rate)

    def _noisy_values(self, params: Params, client: Array, drawn: DrawnRows, noise: Array, share: float) -> Array:
        """Return f and g of one client: noisy sums divided by expected numbers of rows, or −∞ if these are 0."""
        batch = self.rows.take(drawn.indices, drawn.counted)
        summed = sum_clipped_values(self.losses, params, batch, drawn.counted, self.clip_value)
        noisy = summed + noise.astype(summed.dtype)
        counts = (self.counts[client] * share).astype(noisy.dtype)
        return jnp.where(counts > 0, noisy / jnp.where(counts > 0, counts, 1), -jnp.inf)

    def evaluate(self, params: Any) -> Any:
        """Raise ValueError: evaluations on all rows during a run are not part of the privacy accounting."""
        raise ValueError("private clients cannot be evaluated on all rows during a run; use their reports")

    def without_final_evaluation(self) -> PrivateOracle:
        """Return the same clients, but with an ``evaluate_params`` that returns NaN and releases nothing."""
        return replace(self, evaluates=False)

    def evaluate_params(self, params: Params) -> Evaluation:
        """Return noisy f_i and g_i on all rows; the same parameters always get the same noise."""
        values = np.full(self.counts.shape, np.nan)
        if self.evaluates:
            bits = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))
            values = np.asarray(_evaluate(self, params, jax.random.fold_in(self.evaluation_key, zlib.crc32(bits))))
        return Evaluation(values[:, 0], values[:, 1:])


def with_secret(key: Array, secret: Array) -> Array:
    """Return ``key`` with all words of ``secret`` folded in."""
    for i in range(secret.shape[0]):
        key = jax.random.fold_in(key, secret[i])
    return key


@jax.jit
def _evaluate(oracle: PrivateOracle, params: Params, key: Array) -> Array:
    def one(client_and_noise: tuple[Array, Array]) -> Array:
        client, noise = client_and_noise
        drawn = jax_rows.all_rows(oracle.rows, client, oracle.width)
        return oracle._noisy_values(params, client, drawn, oracle.noise.evaluation * noise, 1.0)

    clients = jnp.arange(oracle.client_count, dtype=jnp.int32)
    noise = jax.random.normal(key, oracle.counts.shape, oracle.counts.dtype)
    return map_slices(one, (clients, noise), oracle.slice_size)
