"""Clients with PyTorch data sets that tell nothing of their rows but clipped sums with noise."""

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
from softswitch.privacy.clipping import Arrays, clipped_sum, clipped_total, mean_of_steps, row_mix
from softswitch.privacy.noisy_reports import NoiseDeviations, NoisyOracle


def row_values(functions: ModuleFunctions, params: Mapping[str, Any], data: TorchRows, rows: np.ndarray) -> np.ndarray:
    """f and then g on single rows; rows × functions.

    Args:
        functions: the module's.
        params: where.
        data: the rows.
        rows: the indices of those asked.
    """
    functions.load(params)

    def alone(row: int) -> np.ndarray:
        with buffers_kept(functions.module):
            return functions.values(data.take(np.array([row])))

    return np.array([alone(row) for row in rows])


def clipped_gradients(
    functions: ModuleFunctions, params: Mapping[str, Any], data: TorchRows, rows: np.ndarray, mix: Any, clip: float
) -> Arrays:
    """Σ over rows of the gradient of <mix, (f, g)> on each, none longer than ``clip``; for g its stand-in.

    Args:
        functions: the module's.
        params: where.
        data: the rows.
        rows: the indices of those asked.
        mix: weights of f and each g.
        clip: the longest that a row's gradient may be.
    """
    functions.load(params)
    loss = LocalLoss(float(mix[0]), mix[1:], 0.0, 0.0)

    def alone(row: int) -> dict[str, torch.Tensor]:
        with buffers_kept(functions.module):
            return functions.direction([data.take(np.array([row]))], loss, 1, 0.0)

    each = (alone(row) for row in rows)
    like = {name: np.asarray(value) for name, value in params.items()}
    return clipped_total(
        ({name: part.double().cpu().numpy() for name, part in found.items()} for found in each), like, clip
    )


@contextmanager
def buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    """Within, rows may change the module's buffers; after, these are as before: else later rows would tell of them.

    Args:
        module: the model.
    """
    before = {name: part.detach().clone() for name, part in module.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, part in module.named_buffers():
                part.copy_(before[name])


def mixes_rows(module: torch.nn.Module) -> str | None:
    """Why what a row tells would depend on other rows, in words; None where it does not.

    Batch normalisation takes means over a batch, and running means are kept of all rows that went by: then no clip
    bounds what one row changes.

    Args:
        module: the model.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.running_mean is not None):
            return (
                f"module must not mix rows to be private, but {name!r} is {type(layer).__name__}, by which what one "
                "row tells depends on the others; GroupNorm and LayerNorm do not"
            )
    return None


class PrivateTorchOracle(NoisyOracle, TorchOracle):
    """As ``TorchOracle``, with rows that are clipped one by one, drawn as the analysis has it, and noise on all sums.

    Args:
        functions: the module and its functions.
        clients: the clients' rows.
        participants: m.
        local_steps: E.
        counts: how many rows f and each g concern, as declared or told with noise; clients × functions.
        taken: how many rows each client draws, where that is fixed; None: each row by itself.
        shares: which share of its rows a client draws.
        noise: how much noise there is.
        clips: how long what one row tells of f and all g is at most, and its gradient.
        evaluation_seed: of the noise on evaluations.
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
        self._taken, self._evaluation_seed, self._judges = taken, evaluation_seed, True

    def without_final_evaluation(self) -> PrivateTorchOracle:
        """The same clients, none of which judges an answer."""
        other = copy(self)
        other._judges = False
        return other

    def report(self, params: Mapping[str, Any], draws: HostDraws) -> tuple[Reports, Any]:
        """f_i and g_i by rows drawn anew, clipped and with noise; clients keep what they told of g."""
        told: Any = np.stack([self._report(params, int(client), draws.seed) for client in draws.clients])
        mask: Any = np.ones(len(told), bool)
        return Reports(told[:, 0], told[:, 1:], None, mask), told[:, 1:]

    def _report(self, params: Mapping[str, Any], client: int, seed: int) -> np.ndarray:
        generator = np.random.default_rng((seed, client, REPORT))
        rows = self._rows_drawn(client, generator)
        return self._told(params, client, rows, self.noise.report, self.shares[client], generator)

    def direction(
        self,
        params: Mapping[str, Any],
        draws: HostDraws,
        kept: Any,
        decision: Decision,
        switches: bool,
        step_size: float,
    ) -> dict[str, np.ndarray]:
        """Σ_i r_i u_i; every participant is asked, and counted."""
        each = self.directions(params, draws, kept, decision, switches, step_size)
        weights: Any = decision.weights
        return {name: np.tensordot(weights, parts, axes=1).astype(parts.dtype) for name, parts in each.items()}

    def directions(
        self,
        params: Mapping[str, Any],
        draws: HostDraws,
        kept: Any,
        decision: Decision,
        switches: bool,
        step_size: float,
    ) -> dict[str, np.ndarray]:
        """Every u_i by itself, as the first axis of every array."""
        found = []
        here = {name: np.asarray(value) for name, value in params.items()}
        for place, client in enumerate(map(int, draws.clients)):
            counts: Any = self.counts[client]
            mix, scale = row_mix(decision.local_loss.of(place), kept[place], counts)
            generator = np.random.default_rng((draws.seed, client, UPDATE))
            per_row = float(scale) / float(self.shares[client])

            def noised(at: Arrays, client: int = client, mix: Any = mix, chance: Any = generator) -> Arrays:
                rows = self._rows_drawn(client, chance)
                summed = clipped_gradients(
                    self.functions, at, self._clients[client], rows, np.asarray(mix), self.clip_gradient
                )
                return {name: part + self.noise.step * chance.normal(size=part.shape) for name, part in summed.items()}

            with seeded((draws.seed, client, LAYERS)):
                found.append(mean_of_steps(here, self.local_steps, step_size, per_row, noised))
        return {name: np.stack([direction[name] for direction in found]) for name in found[0]}

    def evaluate_params(self, params: Mapping[str, Any]) -> Evaluation:
        """f_i and g_i on all rows, clipped and with noise; asked again of the same parameters, the same."""
        if not self._judges:
            told = np.full(self.counts.shape, np.nan, self._dtype)
            return Evaluation(told[:, 0], told[:, 1:])
        bits = zlib.crc32(b"".join(np.asarray(params[name]).tobytes() for name in sorted(params)))
        generator = np.random.default_rng((*self._evaluation_seed, bits))
        told = np.stack(
            [
                self._told(params, client, np.arange(len(rows)), self.noise.evaluation, 1.0, generator)
                for client, rows in enumerate(self._clients)
            ]
        )
        return Evaluation(told[:, 0], told[:, 1:])

    def count_rows(self, draws: HostDraws) -> None:
        """How many rows are drawn is not told."""

    def digest(self) -> dict[str, str]:
        """Digests of the functions, the data and how they are kept private."""
        kept = (self.counts.tolist(), self.noise, self.clip_value, self.clip_gradient, self._evaluation_seed)
        return {**super().digest(), "private": repr((kept, self.shares.tolist(), self._taken is None))}

    def _rows_drawn(self, client: int, generator: np.random.Generator) -> np.ndarray:
        many = len(self._clients[client])
        if self._taken is not None:
            return generator.choice(many, int(self._taken[client]), replace=False)
        return np.flatnonzero(generator.random(many) < self.shares[client])

    def _told(
        self,
        params: Mapping[str, Any],
        client: int,
        rows: np.ndarray,
        deviation: float,
        share: float,
        generator: np.random.Generator,
    ) -> np.ndarray:
        """f and g of one client: a sum with noise, over how many rows there would be; −∞ where there are none."""
        functions = 1 + self.constraints
        values = row_values(self.functions, params, self._clients[client], rows)
        noised = clipped_sum(values, self.clip_value, functions) + deviation * generator.normal(size=functions)
        known = self.counts[client] > 0
        told = np.where(known, noised / np.where(known, share * self.counts[client], 1), -np.inf)
        return told.astype(self._dtype)
