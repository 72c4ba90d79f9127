"""PrivateOracle: clients that release only sums of clipped rows with discrete Gaussian noise."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np

from softswitch.data.client_data import ClientData, Rows
from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.oracles.base import Evaluation, HostDraws, HostOracle
from softswitch.oracles.evaluation import Losses, map_slices, slice_size
from softswitch.privacy import jax_rows
from softswitch.privacy.jax_rows import DrawnRows, compile_exactly
from softswitch.privacy.ledger import ReleaseLedger
from softswitch.privacy.noise import add_noise, secret_draw
from softswitch.privacy.numpy_rows import mix_row_losses
from softswitch.privacy.settings import NoiseLevels, RecordPrivacy
from softswitch.problem.parameters import Params, float_dtype
from softswitch.problem.problem import Problem
from softswitch.support.arrays import fingerprint, unflatten_vector
from softswitch.support.tracing import function_digest


class PrivateOracle(HostOracle):
    """Oracle of clients that clip and round the contribution of each row, sum them up, and add noise.

    Noise and drawn rows come from the operating system's entropy. A seed determines only the participants.

    Attributes:
        counts: Public numbers of rows of f and each g, clients × functions; 0 for a missing function.
        levels: Noise multipliers.
        ledger: Counts rounds before they are played, and keeps the only evaluation.
    """

    noise_setting: ClassVar[str] = "epsilon of the privacy, or the rows of the smallest clients"
    is_private: ClassVar[bool] = True
    client_count = property(lambda self: len(self.counts))

    def __init__(
        self,
        problem: Problem,
        clients: ClientData,
        privacy: RecordPrivacy,
        levels: NoiseLevels,
        counts: np.ndarray,
        *,
        participants: int,
        local_steps: int = 1,
        ledger: ReleaseLedger | None = None,
    ) -> None:
        self.counts, self.privacy, self.levels = counts.astype(float), privacy, levels
        self.participants, self.local_steps = participants, local_steps
        self.constraints, self.has_surrogate = counts.shape[1] - 1, problem.constraint_surrogate is not None
        self.ledger, self.evaluates = ledger or ReleaseLedger(), True
        self._losses, self._rows = Losses.of(problem), clients.rows
        self._offsets, self._sizes = np.cumsum(clients.sizes) - clients.sizes, clients.sizes
        self._dtype = np.dtype(float_dtype(problem.start))
        self._slice_size = partial(slice_size, participants)
        # Slices depend on public numbers only: a row must not change the shapes that other rows are computed with.
        self._client_bytes = math.ceil(privacy.rate * self.counts.max()) * (4 * clients.rows.row_bytes + 24)
        self._parameter_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(problem.start))

    @property
    def report_deviations(self) -> np.ndarray:
        """Standard deviation of the noise on each reported f and g, clients × functions; ∞ for missing functions."""
        return self._over_counts(self.levels.report * self.privacy.clip_value, self.privacy.rate, np.inf)

    @property
    def evaluation_deviations(self) -> np.ndarray:
        """Standard deviation of the noise on each evaluated f and g, clients × functions; ∞ for missing functions."""
        return self._over_counts(self.levels.evaluation * self.privacy.clip_value, 1.0, np.inf)

    def _over_counts(self, sums: Any, share: float, missing: float, clients: Any = slice(None)) -> np.ndarray:
        """Return sums divided by a share of the rows of each function, or ``missing`` for functions without rows."""
        counts = self.counts[clients]
        return np.where(counts > 0, sums / np.where(counts > 0, share * counts, 1), missing)

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the expected rows of a round for reports and for gradients, from public numbers of rows."""
        rows = round(self.participants * float(self.privacy.rate * self.counts.max(axis=1).mean()))
        return rows, self.local_steps * rows

    def digest(self) -> dict[str, str]:
        """Return digests of the public numbers of rows and of the functions, and the settings of the noise.

        There is no digest of the rows: whoever knows all rows but one could guess that row with it.
        """
        functions = (self._losses.objective_function, self._losses.constraint_function)
        return {
            "clients": fingerprint(self.counts),
            "program": " ".join(map(function_digest, (*functions, self._losses.surrogate_function))),
            "noise": repr((self.levels, self.participants, self.local_steps)),
        }

    def report(self, params: Params, draws: HostDraws) -> tuple[Reports, np.ndarray]:
        """Return the noisy f_i and g_i on fresh rows, and g_i again, which ``directions`` uses."""
        drawn = self._draw_rows(draws.clients)
        values = self._noisy_values(params, draws.clients, drawn, self.levels.report, self.privacy.rate)
        mask: Any = np.ones(len(values), bool)
        reported: Any = values.astype(self._dtype)
        return Reports(reported[:, 0], reported[:, 1:], None, mask), reported[:, 1:]

    def direction(
        self, params: Params, draws: HostDraws, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Return Σ_i r_i u_i, the weighted sum of the participants' directions."""
        weights = np.asarray(decision.weights)
        every = self.directions(params, draws, kept, decision, switches, step_size)
        return jax.tree.map(lambda part: np.tensordot(weights, part, axes=1).astype(part.dtype), every)

    def directions(
        self, params: Params, draws: HostDraws, kept: Any, decision: Decision, switches: bool, step_size: Any
    ) -> Params:
        """Return every u_i, the mean of E gradients on fresh rows with fresh noise, stacked along the first axis."""
        clients, loss = draws.clients, decision.local_loss
        mixes, scales = zip(*(self._mix(loss.of(i), kept[i], client) for i, client in enumerate(clients)), strict=True)
        params = jax.tree.map(np.asarray, params)
        start = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(params)]).astype(float)
        per_row = np.array(scales)[:, None] * self.privacy.clip_gradient / self.privacy.rate
        total = np.zeros((len(clients), start.size))

        def to_params(vectors: np.ndarray) -> Params:
            unflattened = unflatten_vector(vectors, params)
            return jax.tree.map(lambda part, leaf: part.astype(leaf.dtype), unflattened, params)

        for _ in range(self.local_steps):
            drawn = self._draw_rows(clients)
            points = to_params(start - float(step_size) * total)
            size = self._slice_size(self._client_bytes + 3 * self._parameter_bytes)
            arguments = points, drawn, np.stack(mixes), self.privacy.clip_gradient
            sums = _gradient_sums(self._rows, *arguments, self._losses, size)
            total += per_row * add_noise(np.asarray(sums), self.levels.step)
        return to_params(total / self.local_steps)

    def _mix(self, loss: LocalLoss, constraint: Any, client: int) -> tuple[np.ndarray, float]:
        counts: Any = self.counts[client]
        mix, scale = mix_row_losses(loss, constraint, counts)
        return np.asarray(mix), float(scale)

    def _draw_rows(self, clients: np.ndarray, rate: float | None = None) -> DrawnRows:
        """Draw rows of each client from the system's entropy, padded to a power of two."""
        drawn = [secret_draw(int(self._sizes[i]), self.privacy.rate if rate is None else rate) for i in clients]
        width = 1 << max(0, max(map(len, drawn)) - 1).bit_length()
        places: Any = np.zeros((len(drawn), width), np.int32)
        for row, rows, client in zip(places, drawn, clients, strict=True):
            row[: len(rows)] = self._offsets[client] + rows
        counted: Any = np.arange(width) < np.array([len(rows) for rows in drawn])[:, None]
        return DrawnRows(places, counted)

    def _noisy_values(
        self, params: Params, clients: np.ndarray, drawn: DrawnRows, level: float, share: float
    ) -> np.ndarray:
        """Return noisy f and g: noisy sums divided by expected numbers of rows, or −∞ if these are 0."""
        clip, size = self.privacy.clip_value, self._slice_size(self._client_bytes)
        sums = _value_sums(self._rows, params, drawn, clip, self._losses, size)
        return self._over_counts(clip * add_noise(np.asarray(sums), level), share, -np.inf, clients)

    def evaluate(self, params: Any) -> Any:
        """Raise ValueError: evaluations on all rows during a run are not part of the privacy accounting."""
        raise ValueError("private clients cannot be evaluated on all rows during a run; use their reports")

    def evaluate_params(self, params: Params) -> Evaluation:
        """Return noisy f_i and g_i on all rows; NaN if ``evaluates`` is False, which releases nothing."""
        if not self.evaluates:
            values = np.full(self.counts.shape, math.nan)
        else:
            every = np.arange(self.client_count)
            values = self.ledger.evaluate(
                fingerprint(params),
                lambda: self._noisy_values(params, every, self._draw_rows(every, 1.0), self.levels.evaluation, 1.0),
            )
        return Evaluation(values[:, 0], values[:, 1:])


@partial(compile_exactly, static_argnums=(4, 5))
def _value_sums(rows: Rows, params: Params, drawn: DrawnRows, clip: Any, losses: Losses, size: int) -> Any:
    def one(drawn: DrawnRows) -> Any:
        return jax_rows.sum_clipped_values(losses, params, rows.take(*drawn), drawn.counted, clip)

    return map_slices(one, drawn, size)


@partial(compile_exactly, static_argnums=(5, 6))
def _gradient_sums(rows: Rows, points: Any, drawn: DrawnRows, mixes: Any, clip: Any, losses: Losses, size: int) -> Any:
    def one(client: tuple[Params, DrawnRows, Any]) -> Any:
        params, drawn, mix = client
        return jax_rows.sum_clipped_gradients(losses, params, rows.take(*drawn), drawn.counted, mix, clip)

    return map_slices(one, (points, drawn, mixes), size)
