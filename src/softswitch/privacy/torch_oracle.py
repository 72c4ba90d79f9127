"""Clients that release only sums of clipped rows with noise, computed with PyTorch."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any

import numpy as np
import torch
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from softswitch.methods.messages import Decision, LocalLoss, Reports
from softswitch.oracles.base import Evaluation
from softswitch.oracles.batch_sizes import Batches
from softswitch.oracles.host import HostDraws
from softswitch.oracles.torch import LAYERS, REPORT, UPDATE, TorchOracle
from softswitch.oracles.torch_functions import ModuleFunctions
from softswitch.oracles.torch_rows import TorchRows, seeded
from softswitch.privacy.clipping import (
    Arrays,
    average_steps,
    mix_row_losses,
    sum_clipped_gradients,
    sum_clipped_values,
)
from softswitch.privacy.noisy_reports import NoiseDeviations, NoisyOracle


def evaluate_rows(
    functions: ModuleFunctions, params: Mapping[str, Any], data: TorchRows, rows: np.ndarray
) -> np.ndarray:
    """Return f and g on single rows, rows × functions."""
    functions.load(params)

    def one(row: int) -> np.ndarray:
        with preserve_buffers(functions.module):
            return functions.values(data.take(np.array([row])))

    return np.array([one(row) for row in rows])


def sum_row_gradients(
    functions: ModuleFunctions, params: Mapping[str, Any], data: TorchRows, rows: np.ndarray, mix: Any, clip: float
) -> Arrays:
    """Sum the gradients of <mix, (f, g)> over rows, each clipped to norm ``clip``; the surrogate replaces g."""
    functions.load(params)
    loss = LocalLoss(float(mix[0]), mix[1:], 0.0, 0.0)

    def one(row: int) -> Arrays:
        with preserve_buffers(functions.module):
            gradient = functions.direction([data.take(np.array([row]))], loss, 1, 0.0)
        return {name: part.double().cpu().numpy() for name, part in gradient.items()}

    like = {name: np.asarray(value) for name, value in params.items()}
    return sum_clipped_gradients((one(row) for row in rows), like, clip)


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
            return (
                f"module must not mix rows with privacy, but {name!r} is {type(layer).__name__}, whose output for one "
                "row depends on other rows; use GroupNorm or LayerNorm"
            )
    return None


class PrivateTorchOracle(NoisyOracle, TorchOracle):
    """A ``TorchOracle`` whose rows are clipped one by one, with noise on all sums.

    Args:
        functions: The module and its functions.
        clients: Rows of the clients.
        participants: Number of clients m in a round.
        local_steps: Number of local steps E.
        counts: Number of rows of f and each g, public or released with noise; clients × functions.
        taken: Number of rows that each client draws; None for Poisson sampling.
        shares: Fraction of its rows that each client draws.
        noise: Standard deviations of the noise.
        clips: Clipping norms of a row's values and of its gradient.
        evaluation_seed: Seed of the noise on evaluations.
    """

    def __init__(
        self,
        functions: ModuleFunctions,
        clients: Sequence[TorchRows],
        *,
        participants: int,
        local_steps: int,
        counts: np.ndarray,
        taken: np.ndarray | None,
        shares: np.ndarray,
        noise: NoiseDeviations,
        clips: tuple[float, float],
        evaluation_seed: tuple[int, ...],
    ) -> None:
        super().__init__(
            functions,
            clients,
            None,
            participants=participants,
            local_steps=local_steps,
            batches=Batches(None, None),
            replace=None,
        )
        self.reports_full_data = False
        self.counts, self.shares, self.noise = counts, shares, noise
        self.clip_value, self.clip_gradient = clips
        self._taken, self._evaluation_seed, self._evaluates = taken, evaluation_seed, True

    def without_final_evaluation(self) -> PrivateTorchOracle:
        """Return the same clients without evaluations."""
        other = copy(self)
        other._evaluates = False
        return other

    def report(self, params: Mapping[str, Any], draws: HostDraws) -> tuple[Reports, Any]:
        """Compute noisy f_i and g_i on fresh rows; clients keep their reported g."""
        values: Any = np.stack([self._report(params, int(client), draws.seed) for client in draws.clients])
        mask: Any = np.ones(len(values), bool)
        return Reports(values[:, 0], values[:, 1:], None, mask), values[:, 1:]

    def _report(self, params: Mapping[str, Any], client: int, seed: int) -> np.ndarray:
        generator = np.random.default_rng((seed, client, REPORT))
        rows = self._draw_rows(client, generator)
        return self._noisy_values(params, client, rows, self.noise.report, self.shares[client], generator)

    def direction(
        self,
        params: Mapping[str, Any],
        draws: HostDraws,
        kept: Any,
        decision: Decision,
        switches: bool,
        step_size: float,
    ) -> dict[str, np.ndarray]:
        """Compute Σ_i r_i u_i; every participant computes and is charged, whatever its weight."""
        directions = self.directions(params, draws, kept, decision, switches, step_size)
        weights: Any = decision.weights
        return {name: np.tensordot(weights, parts, axes=1).astype(parts.dtype) for name, parts in directions.items()}

    def directions(
        self,
        params: Mapping[str, Any],
        draws: HostDraws,
        kept: Any,
        decision: Decision,
        switches: bool,
        step_size: float,
    ) -> dict[str, np.ndarray]:
        """Compute every u_i, stacked along the first axis."""
        directions = []
        arrays = {name: np.asarray(value) for name, value in params.items()}
        for place, client in enumerate(map(int, draws.clients)):
            counts: Any = self.counts[client]
            mix, scale = mix_row_losses(decision.local_loss.of(place), kept[place], counts)
            generator = np.random.default_rng((draws.seed, client, UPDATE))
            per_row = float(scale) / float(self.shares[client])

            def noisy_sum(at: Arrays, client: int = client, mix: Any = mix, generator: Any = generator) -> Arrays:
                rows = self._draw_rows(client, generator)
                summed = sum_row_gradients(
                    self.functions, at, self._clients[client], rows, np.asarray(mix), self.clip_gradient
                )
                noise = self.noise.step
                return {name: part + noise * generator.normal(size=part.shape) for name, part in summed.items()}

            with seeded((draws.seed, client, LAYERS)):
                directions.append(average_steps(arrays, self.local_steps, step_size, per_row, noisy_sum))
        return {name: np.stack([direction[name] for direction in directions]) for name in directions[0]}

    def evaluate_params(self, params: Mapping[str, Any]) -> Evaluation:
        """Compute noisy f_i and g_i on all rows; the same parameters always get the same noise."""
        if not self._evaluates:
            values = np.full(self.counts.shape, np.nan, self._dtype)
            return Evaluation(values[:, 0], values[:, 1:])
        bits = zlib.crc32(b"".join(np.asarray(params[name]).tobytes() for name in sorted(params)))
        generator = np.random.default_rng((*self._evaluation_seed, bits))
        values = np.stack(
            [
                self._noisy_values(params, client, np.arange(len(rows)), self.noise.evaluation, 1.0, generator)
                for client, rows in enumerate(self._clients)
            ]
        )
        return Evaluation(values[:, 0], values[:, 1:])

    def count_rows(self, draws: HostDraws) -> None:
        """Return None: the number of drawn rows is not released."""

    def digest(self) -> dict[str, str]:
        """Return digests of the functions, the data and the privacy settings."""
        kept = (self.counts.tolist(), self.noise, self.clip_value, self.clip_gradient, self._evaluation_seed)
        return {**super().digest(), "private": repr((kept, self.shares.tolist(), self._taken is None))}

    def _draw_rows(self, client: int, generator: np.random.Generator) -> np.ndarray:
        count = len(self._clients[client])
        if self._taken is not None:
            return generator.choice(count, int(self._taken[client]), replace=False)
        return np.flatnonzero(generator.random(count) < self.shares[client])

    def _noisy_values(
        self,
        params: Mapping[str, Any],
        client: int,
        rows: np.ndarray,
        deviation: float,
        share: float,
        generator: np.random.Generator,
    ) -> np.ndarray:
        """Return f and g of one client: noisy sums divided by expected numbers of rows, or −∞ if these are 0."""
        functions = 1 + self.constraints
        values = evaluate_rows(self.functions, params, self._clients[client], rows)
        noisy = sum_clipped_values(values, self.clip_value, functions) + deviation * generator.normal(size=functions)
        counts = self.counts[client]
        divided = np.where(counts > 0, noisy / np.where(counts > 0, share * counts, 1), -np.inf)
        return divided.astype(self._dtype)
