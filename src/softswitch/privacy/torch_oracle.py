"""Clients that release only sums of clipped rows with noise, computed with PyTorch."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.oracles.base import Evaluation, HostDraws
from softswitch.oracles.batch_sizes import Batches
from softswitch.oracles.torch import LAYERS, REPORT, UPDATE, TorchOracle
from softswitch.oracles.torch_functions import ModuleFunctions, TorchRows, seeded
from softswitch.privacy import clipping
from softswitch.privacy.clipping import Arrays
from softswitch.privacy.oracle import NoiseDeviations, NoisyOracle
from softswitch.problem.parameters import Params


def evaluate_rows(functions: ModuleFunctions, params: Params, data: TorchRows, rows: np.ndarray) -> np.ndarray:
    """Return f and g on single rows, rows × functions."""
    functions.load(params)

    def one(row: int) -> np.ndarray:
        with preserve_buffers(functions.module):
            return functions.values(data.take(np.array([row])))

    return np.array([one(row) for row in rows])


def sum_row_gradients(
    functions: ModuleFunctions, params: Params, data: TorchRows, rows: np.ndarray, mix: Any, clip: float
) -> Arrays:
    """Sum the gradients of <mix, (f, g)> over rows, each clipped to norm ``clip``; the surrogate replaces g."""
    functions.load(params)
    loss = LocalLoss(float(mix[0]), mix[1:], 0.0, 0.0)

    def one(row: int) -> Arrays:
        with preserve_buffers(functions.module):
            gradient = functions.direction([data.take(np.array([row]))], loss, 1, 0.0)
        return {name: part.double().cpu().numpy() for name, part in gradient.items()}

    like = {name: np.asarray(value) for name, value in params.items()}
    return clipping.sum_clipped_gradients((one(row) for row in rows), like, clip)


@contextmanager
def preserve_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Restore the module's buffers afterwards, so that no row affects later ones."""
    before = {name: part.detach().clone() for name, part in module.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, part in module.named_buffers():
                part.copy_(before[name])


def describe_row_mixing(module: torch.nn.Module) -> str | None:
    """Return why the output of the module for one row depends on other rows; None if it does not.

    Clipping does not bound the influence of a row on batch normalisation or on running statistics.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.running_mean is not None):
            layer_type = f"{name!r} is {type(layer).__name__}, whose output for one row depends on other rows"
            return f"module must not mix rows with privacy, but {layer_type}; use GroupNorm or LayerNorm"
    return None


class PrivateTorchOracle(NoisyOracle, TorchOracle):
    """A ``TorchOracle`` whose rows are clipped one by one, with noise on all sums.

    ``clips`` are the clipping norms of a row's values and of its gradient. See also ``TorchOracle`` and
    ``NoisyOracle``.
    """

    def __init__(
        self,
        functions: ModuleFunctions,
        clients: Sequence[TorchRows],
        *,
        participants: int,
        local_steps: int,
        counts: np.ndarray,
        shares: np.ndarray,
        noise: NoiseDeviations,
        clips: tuple[float, float],
        evaluation_seed: tuple[int, ...],
    ) -> None:
        given: dict[str, Any] = {"participants": participants, "local_steps": local_steps}
        super().__init__(functions, clients, None, **given, batches=Batches(None, None), replace=None)
        self.reports_full_data = False
        self.counts, self.shares, self.noise = counts, shares, noise
        self.clip_value, self.clip_gradient = clips
        self._evaluation_seed, self._evaluates = evaluation_seed, True

    def without_final_evaluation(self) -> PrivateTorchOracle:
        """Return the same clients without evaluations."""
        other = copy(self)
        other._evaluates = False
        return other

    def report(self, params: Params, draws: HostDraws) -> tuple[Reports, Any]:
        """Compute noisy f_i and g_i on fresh rows; clients keep their reported g."""

        def one(client: int) -> np.ndarray:
            generator = np.random.default_rng((draws.seed, client, REPORT))
            rows = self._draw_rows(client, generator)
            return self._noisy_values(params, client, rows, self.noise.report, self.shares[client], generator)

        values: Any = np.stack([one(int(client)) for client in draws.clients])
        mask: Any = np.ones(len(values), bool)
        return Reports(values[:, 0], values[:, 1:], None, mask), values[:, 1:]

    def direction(
        self, params: Params, draws: HostDraws, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> Arrays:
        """Compute Σ_i r_i u_i; every participant computes and is charged, also with weight 0."""
        directions = self.directions(params, draws, kept, decision, switches, step_size)
        weights: Any = decision.weights
        return {name: np.tensordot(weights, parts, axes=1).astype(parts.dtype) for name, parts in directions.items()}

    def directions(
        self, params: Params, draws: HostDraws, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> Arrays:
        """Compute every u_i, stacked along the first axis."""
        arrays = {name: np.asarray(value) for name, value in params.items()}

        def one(place: int, client: int) -> Arrays:
            mix, scale = clipping.mix_row_losses(decision.local_loss.of(place), kept[place], self.counts[client])
            generator = np.random.default_rng((draws.seed, client, UPDATE))

            def noisy_sum(point: Arrays) -> Arrays:
                rows, data = self._draw_rows(client, generator), self._clients[client]
                total = sum_row_gradients(self.functions, point, data, rows, np.asarray(mix), self.clip_gradient)
                noise = self.noise.step
                return {name: part + noise * generator.normal(size=part.shape) for name, part in total.items()}

            with seeded((draws.seed, client, LAYERS)):
                per_row = float(scale) / float(self.shares[client])
                return clipping.average_steps(arrays, self.local_steps, step_size, per_row, noisy_sum)

        directions = [one(place, int(client)) for place, client in enumerate(draws.clients)]
        return {name: np.stack([direction[name] for direction in directions]) for name in directions[0]}

    def evaluate_params(self, params: Params) -> Evaluation:
        """Compute noisy f_i and g_i on all rows; the same parameters always get the same noise."""
        values = np.full(self.counts.shape, np.nan, self._dtype)
        if self._evaluates:
            bits = zlib.crc32(b"".join(np.asarray(params[name]).tobytes() for name in sorted(params)))
            generator = np.random.default_rng((*self._evaluation_seed, bits))
            for client, data in enumerate(self._clients):
                rows, noise = np.arange(len(data)), self.noise.evaluation
                values[client] = self._noisy_values(params, client, rows, noise, 1.0, generator)
        return Evaluation(values[:, 0], values[:, 1:])

    def count_rows(self, draws: HostDraws) -> None:
        """Return None: the number of drawn rows is not released."""

    def digest(self) -> dict[str, str]:
        """Return digests of the functions, the data and the privacy settings."""
        kept = (self.counts.tolist(), self.noise, self.clip_value, self.clip_gradient, self._evaluation_seed)
        return {**super().digest(), "private": repr((kept, self.shares.tolist()))}

    def _draw_rows(self, client: int, generator: np.random.Generator) -> np.ndarray:
        return np.flatnonzero(generator.random(len(self._clients[client])) < self.shares[client])

    def _noisy_values(
        self, params: Params, client: int, rows: np.ndarray, noise: float, share: float, generator: np.random.Generator
    ) -> np.ndarray:
        """Return f and g of one client: noisy sums divided by expected numbers of rows, or −∞ if these are 0."""
        counts = self.counts[client]
        values = evaluate_rows(self.functions, params, self._clients[client], rows)
        total = clipping.sum_clipped_values(values, self.clip_value, len(counts))
        noisy = total + noise * generator.normal(size=len(counts))
        return np.where(counts > 0, noisy / np.where(counts > 0, share * counts, 1), -np.inf).astype(self._dtype)
