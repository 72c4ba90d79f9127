"""Clients with PyTorch data sets that tell nothing of their rows but clipped sums with noise."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from softswitch.clients.oracle import Judged
from softswitch.clients.own_batches import Batches
from softswitch.clients.private.mixing import row_mix
from softswitch.clients.private.numpy_sums import Arrays, clipped_sum, mean_of_steps
from softswitch.clients.private.tells_with_noise import NoiseDeviations, TellsWithNoise
from softswitch.clients.round_by_round import Turn
from softswitch.clients.torch_modules.module_functions import ModuleFunctions
from softswitch.clients.torch_modules.row_by_row import clipped_gradients, row_values
from softswitch.clients.torch_modules.torch_oracle import LAYERS, REPORT, UPDATE, TorchOracle
from softswitch.clients.torch_modules.torch_rows import TorchRows, seeded
from softswitch.method.messages import Decision, Reports


class PrivateTorchOracle(TellsWithNoise, TorchOracle):
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
        judging_seed: of the noise on judgings.
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
        judging_seed: tuple[int, ...],
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
        self.reports_all = False
        self.counts, self.shares, self.noise = counts, shares, noise
        self.clip_value, self.clip_gradient = clips
        self._taken, self._judging_seed, self._judges = taken, judging_seed, True

    def unjudging(self) -> PrivateTorchOracle:
        """The same clients, none of which judges an answer."""
        other = copy(self)
        other._judges = False
        return other

    def report(self, params: Mapping[str, Any], draws: Turn) -> tuple[Reports, Any]:
        """f_i and g_i by rows drawn anew, clipped and with noise; clients keep what they told of g."""
        told: Any = np.stack([self._report(params, int(client), draws.seed) for client in draws.clients])
        mask: Any = np.ones(len(told), bool)
        return Reports(told[:, 0], told[:, 1:], None, mask), told[:, 1:]

    def _report(self, params: Mapping[str, Any], client: int, seed: int) -> np.ndarray:
        generator = np.random.default_rng((seed, client, REPORT))
        rows = self._rows_drawn(client, generator)
        return self._told(params, client, rows, self.noise.report, self.shares[client], generator)

    def direction(
        self, params: Mapping[str, Any], draws: Turn, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> dict[str, np.ndarray]:
        """Σ_i r_i u_i; every participant is asked, and counted."""
        each = self.directions(params, draws, kept, decision, switches, step_size)
        weights: Any = decision.weights
        return {name: np.tensordot(weights, parts, axes=1).astype(parts.dtype) for name, parts in each.items()}

    def directions(
        self, params: Mapping[str, Any], draws: Turn, kept: Any, decision: Decision, switches: bool, step_size: float
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

    def judge(self, params: Mapping[str, Any]) -> Judged:
        """f_i and g_i on all rows, clipped and with noise; asked again of the same parameters, the same."""
        if not self._judges:
            told = np.full(self.counts.shape, np.nan, self._dtype)
            return Judged(told[:, 0], told[:, 1:])
        bits = zlib.crc32(b"".join(np.asarray(params[name]).tobytes() for name in sorted(params)))
        generator = np.random.default_rng((*self._judging_seed, bits))
        told = np.stack(
            [
                self._told(params, client, np.arange(len(rows)), self.noise.judging, 1.0, generator)
                for client, rows in enumerate(self._clients)
            ]
        )
        return Judged(told[:, 0], told[:, 1:])

    def rows_held(self, draws: Turn) -> None:
        """How many rows are drawn is not told."""

    def digest(self) -> dict[str, str]:
        """Digests of the functions, the data and how they are kept private."""
        kept = (self.counts.tolist(), self.noise, self.clip_value, self.clip_gradient, self._judging_seed)
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
