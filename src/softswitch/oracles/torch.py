"""TorchOracle: clients with PyTorch data and a shared module, in one process."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch

from softswitch.methods.messages import Decision, Reports
from softswitch.oracles.base import HostDraws, HostOracle
from softswitch.oracles.batch_sizes import Batches
from softswitch.oracles.torch_functions import BatchNormStatistics, ModuleFunctions, TorchRows, seeded
from softswitch.support.tracing import function_digest, strip_addresses

REPORT, UPDATE, LAYERS = 0, 1, 2  # random streams: rows of reports, rows of gradients, and layers such as dropout
Arrays = Mapping[str, Any]


class TorchOracle(HostOracle):
    """Oracle of clients that hold PyTorch data sets and take gradient steps of one module, one after another.

    ``held_out`` has an entry for each client, None for one without such rows. By default all clients take part, with
    all rows. If ``replace`` is None, rows are drawn with replacement, but a client with no more rows than a batch uses
    each row once. ``client_optimum`` are the f_i* if objectives are regrets.
    """

    client_count = property(lambda self: len(self._clients))

    def __init__(
        self,
        functions: ModuleFunctions,
        clients: Sequence[TorchRows],
        held_out: Sequence[TorchRows | None] | None,
        *,
        participants: int | None = None,
        local_steps: int = 1,
        batches: Batches = Batches(None, None),  # noqa: B008 (frozen)
        replace: bool | None = None,
        client_optimum: np.ndarray | None = None,
    ) -> None:
        self.client_optimum = client_optimum
        self.functions, self._clients, self._held_out = functions, clients, held_out
        self.participants, self.local_steps = participants or len(clients), local_steps
        self._batches, self._replace = batches, replace
        self.report_batch_size, self.has_held_out = batches.report, held_out is not None
        self._statistics = BatchNormStatistics(functions)
        for rows in clients:
            self._statistics.check_batches(rows, batches.update)
        self._dtype = np.float64 if any(w.dtype == torch.float64 for w in functions.trained.values()) else np.float32
        self.constraints = functions.constraints(clients[0].take(np.arange(1)))
        self.has_surrogate = functions.surrogate is not None
        # Batch-norm statistics belong to the current iterate: a report at an earlier one would use others.
        self.can_repeat_reports = not self._statistics
        self.reports_full_data = self.participants == len(clients) and batches.report is None and not self._statistics

    @property
    def evaluation_row_count(self) -> int:
        """Number of rows of all clients that an evaluation uses, held-out rows included."""
        return sum(len(rows) for rows in (*self._clients, *(self._held_out or ())) if rows is not None)

    def load_buffers(self, params: Arrays, buffers: Any) -> None:
        """Restore batch-norm statistics, or recompute them at ``params`` if ``buffers`` is None."""
        if self._statistics:
            self.functions.load(params)
            if buffers is None:
                self._statistics.recompute(rows.all_rows() for rows in self._clients)
            else:
                self._statistics.write(buffers)

    def buffers(self) -> dict[str, np.ndarray] | None:
        """Return the batch-norm statistics by name, or None without such layers."""
        return self._statistics.read() if self._statistics else None

    def report(self, params: Arrays, draws: HostDraws) -> tuple[Reports, None]:
        """Return f_i and g_i on a batch of each participant; nothing is kept (None)."""
        self.functions.load(params)
        reported: list[Any] = []
        for client in draws.clients:
            with closing(self._batches_of(client, draws, REPORT)) as batches:
                batch = next(batches)
            reported.append(self._subtract_optimum(client, self.functions.values(batch)))
        values: Any = np.asarray(reported, self._dtype)
        mask: Any = np.ones(len(draws.clients), bool)
        return Reports(values[:, 0], values[:, 1:], None, mask), None

    def direction(
        self, params: Arrays, draws: HostDraws, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> dict[str, np.ndarray]:
        """Return Σ_i r_i u_i; clients of weight 0 are skipped."""
        total = {name: torch.zeros_like(weight) for name, weight in self.functions.trained.items()}
        weights: Any = decision.weights
        places = [place for place, weight in enumerate(weights) if weight != 0]
        for place, direction in self._directions(places, params, draws, decision, step_size):
            for name, part in direction.items():
                total[name].add_(part, alpha=float(weights[place]))
        return {name: part.cpu().numpy() for name, part in total.items()}

    def directions(
        self, params: Arrays, draws: HostDraws, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> dict[str, np.ndarray]:
        """Return every u_i, stacked along the first axis."""
        each = self._directions(range(len(draws.clients)), params, draws, decision, step_size)
        directions = [{name: part.cpu().numpy().copy() for name, part in one.items()} for _, one in each]
        return {name: np.stack([direction[name] for direction in directions]) for name in directions[0]}

    def _directions(
        self, places: Sequence[int], params: Arrays, draws: HostDraws, decision: Decision, step_size: float
    ) -> Iterator[tuple[int, Mapping[str, torch.Tensor]]]:
        """Yield (place, direction) of some participants; then set the mean of their batch-norm statistics."""
        before, after = self._statistics.read(), []
        for place in places:
            client = draws.clients[place]
            self.functions.load(params)
            self._statistics.write(before)
            loss = decision.local_loss.of(place)
            with seeded((draws.seed, int(client), LAYERS)), closing(self._batches_of(client, draws, UPDATE)) as batches:
                yield place, self.functions.direction(batches, loss, self.local_steps, step_size)
            after.append(self._statistics.read())
        if after:
            self._statistics.write_mean(after)

    def evaluate(self, params: Arrays) -> tuple[Any, Any]:
        """Return f_i and g_i of every client on all of its rows."""
        return self._values(params, self._clients)

    def evaluate_held_out(self, params: Arrays) -> tuple[Any, Any] | None:
        """Return f_i and g_i on held-out rows, −∞ for a client without any; None if no client has any."""
        return None if self._held_out is None else self._values(params, self._held_out)

    def load_answer(self, params: Arrays) -> None:
        """Load ``params`` and recomputed batch-norm statistics into the module, and set ``eval`` mode."""
        self.load_buffers(params, None)
        self.functions.load(params)
        self.functions.module.eval()

    def count_rows(self, draws: HostDraws) -> Any:
        """Return the number of the participants' rows if a batch has all of them, else None."""
        counts = [len(self._clients[client]) for client in draws.clients]
        return np.asarray(sum(counts)) if None in self._batches else None

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """Return the rows of a round for values, m·B_ζ, and for gradients, m·E·B_g; all rows are ``row_count``."""
        values, gradients = (row_count if size is None else self.participants * size for size in self._batches)
        return values, self.local_steps * gradients

    def digest(self) -> dict[str, str]:
        """Return texts by name that identify functions, data and settings."""
        functions, module = self.functions, self.functions.module
        kinds = sorted({type(part) for part in module.modules()}, key=lambda kind: kind.__qualname__)
        changed = {*functions.trained, *self._statistics.read()}
        fixed = {name: value for name, value in module.state_dict().items() if name not in changed}
        program = (functions.objective, functions.constraint, functions.surrogate, functions.optimizer)
        return {
            "module": strip_addresses(repr(module)),
            "local_steps": str(self.local_steps),
            "participants": str(self.participants),
            "batches": f"{tuple(self._batches)}, replace={self._replace}",
            "clients": function_digest(*(rows.digest() for rows in self._clients)),
            "program": function_digest(*program, *(kind.forward for kind in kinds), fixed),
            "torch": torch.__version__,
            **({} if self.client_optimum is None else {"client_optimum": str(self.client_optimum.tolist())}),
        }

    def _subtract_optimum(self, client: Any, values: np.ndarray) -> np.ndarray:
        if self.client_optimum is not None:
            values[0] -= self.client_optimum[client]
        return values

    def _batches_of(self, client: Any, draws: HostDraws, purpose: int) -> Generator[Any]:
        rows, size = self._clients[client], self._batches[purpose]
        if size is not None and size >= len(rows) and self._replace is None:
            size = None
        return rows.batches((draws.seed, int(client), purpose), size, self._replace is not False)

    def _values(self, params: Arrays, clients: Sequence[TorchRows | None]) -> tuple[np.ndarray, np.ndarray]:
        """Return f_i and g_i with the batch-norm statistics of ``params``; restore those of the round afterwards."""
        before, values = self._statistics.read(), np.full((len(clients), 1 + self.constraints), -np.inf)
        try:
            self.load_buffers(params, None)
            self.functions.load(params)
            for client, rows in enumerate(clients):
                if rows is not None:
                    values[client] = self._subtract_optimum(client, self.functions.values(rows.all_rows()))
        finally:
            self._statistics.write(before)
        return values[:, 0].astype(self._dtype), values[:, 1:].astype(self._dtype)
