"""Clients with PyTorch data sets and one module between them, as one oracle in one process."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import torch

from softswitch.methods.messages import Decision, Reports
from softswitch.oracles.base import Evaluation
from softswitch.oracles.batch_sizes import Batches
from softswitch.oracles.host import HostDraws, HostOracle
from softswitch.oracles.torch_functions import ModuleFunctions, RunningMeans
from softswitch.oracles.torch_rows import TorchRows, seeded
from softswitch.problem.pooled import PooledConstraint
from softswitch.support.function_equality import function_digest
from softswitch.support.tracing import without_addresses

REPORT, UPDATE, LAYERS = 0, 1, 2
"""What randomness is for: the rows of a report, those of a gradient, and what layers draw."""


class TorchOracle(HostOracle):
    """Clients that hold data sets and take gradient steps of one module, one client after the other.

    Args:
        functions: the module and its functions.
        clients: the clients' rows.
        held_out: rows not trained on, one entry a client, None where it has none; or None.
        participants: m.
        local_steps: E.
        batches: how many rows a report and a gradient take.
        replace: whether they are drawn with replacement; None: with, but a client that has no more rows than a batch
            takes each of them once.
        client_optimum: f_i*, where regrets are told in place of objectives; else None.
    """

    def __init__(
        self,
        functions: ModuleFunctions,
        clients: Sequence[TorchRows],
        held_out: Sequence[TorchRows | None] | None,
        *,
        participants: int,
        local_steps: int,
        batches: Batches,
        replace: bool | None,
        client_optimum: np.ndarray | None = None,
    ) -> None:
        self.client_optimum = client_optimum
        self.functions, self._clients, self._held_out = functions, clients, held_out
        self.participants, self.local_steps = participants, local_steps
        self._batches, self._replace = batches, replace
        self._means = RunningMeans(functions)
        self._dtype = np.float64 if any(w.dtype == torch.float64 for w in functions.trained.values()) else np.float32
        self.constraints = functions.constraints(clients[0].take(np.arange(1)))
        self.has_pooled_constraint = isinstance(functions.constraint, PooledConstraint)
        self.has_surrogate = functions.stand_in is not None
        self.has_held_out = held_out is not None
        # Running means are those of the present iterate: what was reported at the one before was by others.
        self.can_repeat_reports = not self._means
        self.reports_full_data = participants == len(clients) and batches.report is None and not self._means

    @property
    def client_count(self) -> int:
        """n."""
        return len(self._clients)

    @property
    def evaluation_row_count(self) -> int:
        """How many rows an evaluation goes through, those held out included."""
        return sum(len(rows) for rows in (*self._clients, *(self._held_out or ())) if rows is not None)

    @property
    def report_batch_size(self) -> int | None:
        """How many rows a client draws for its report; None: all of them."""
        return self._batches.report

    @property
    def statistics(self) -> int | None:
        """How many additive statistics a report has; None for a plain constraint."""
        return (
            len(self.functions.statistics(self._clients[0].take(np.arange(1)))) if self.has_pooled_constraint else None
        )

    def pool(self, sums: Any) -> Any:
        """A pooled constraint by its summed statistics."""
        return self.functions.pooled(np.asarray(sums)).astype(self._dtype)

    def load_buffers(self, params: Mapping[str, Any], buffers: Any) -> None:
        """Before some rounds: the running means where they stopped, or found anew at these parameters."""
        if not self._means:
            return
        self.functions.load(params)
        if buffers is None:
            self._find_means_anew()
        else:
            self._means.write(buffers)

    def buffers(self) -> dict[str, np.ndarray] | None:
        """The running means."""
        return self._means.read() if self._means else None

    def report(self, params: Mapping[str, Any], draws: HostDraws) -> tuple[Reports, None]:
        """f_i and g_i on a batch of each participant."""
        self.functions.load(params)
        told: list[Any] = []
        sums: list[Any] = []
        for client in draws.clients:
            with closing(self._drawn(client, draws, REPORT)) as batches:
                batch = next(batches)
            told.append(self._less(client, self.functions.values(batch)))
            if self.has_pooled_constraint:
                sums.append(len(self._clients[client]) * self.functions.statistics(batch))
        values: Any = np.asarray(told, self._dtype)
        mask: Any = np.ones(len(draws.clients), bool)
        if not self.has_pooled_constraint:
            return Reports(values[:, 0], values[:, 1:], None, mask), None
        summed: Any = np.asarray(sums, self._dtype)
        return Reports(values[:, 0], values[:, 1:], self.pool(summed.sum(axis=0)), mask, sums=summed), None

    def direction(
        self,
        params: Mapping[str, Any],
        draws: HostDraws,
        kept: None,
        decision: Decision,
        switches: bool,
        step_size: float,
    ) -> dict[str, np.ndarray]:
        """Σ_i r_i u_i; a client of weight 0 is not asked."""
        total = {name: torch.zeros_like(weight) for name, weight in self.functions.trained.items()}
        weights: Any = decision.weights
        places = [place for place, weight in enumerate(weights) if weight != 0]
        for place, direction in self._directions(places, params, draws, decision, step_size):
            for name, part in direction.items():
                total[name].add_(part, alpha=float(weights[place]))
        return {name: part.cpu().numpy() for name, part in total.items()}

    def directions(
        self,
        params: Mapping[str, Any],
        draws: HostDraws,
        kept: None,
        decision: Decision,
        switches: bool,
        step_size: float,
    ) -> dict[str, np.ndarray]:
        """Every u_i by itself, as the first axis of every array."""
        places = list(range(len(draws.clients)))
        found = [
            {name: part.cpu().numpy().copy() for name, part in direction.items()}
            for _, direction in self._directions(places, params, draws, decision, step_size)
        ]
        return {name: np.stack([direction[name] for direction in found]) for name in found[0]}

    def _directions(
        self, places: Sequence[int], params: Mapping[str, Any], draws: HostDraws, decision: Decision, step_size: float
    ) -> Iterator[tuple[int, Mapping[str, torch.Tensor]]]:
        """The directions of some participants, one after the other; the running means are those of all afterwards."""
        before = self._means.read()
        after: list[dict[str, np.ndarray]] = []
        for place in places:
            client = draws.clients[place]
            self.functions.load(params)
            if self._means:
                self._means.write(before)
            loss = decision.local_loss.of(place)
            own = (draws.seed, int(client), LAYERS)
            with seeded(own), closing(self._drawn(client, draws, UPDATE)) as batches:
                yield place, self.functions.direction(batches, loss, self.local_steps, step_size)
            after.append(self._means.read())
        if self._means and after:
            self._means.write_mean(after)

    def evaluate(self, params: Mapping[str, Any]) -> tuple[Any, Any]:
        """f_i and g_i of every client on all of its rows."""
        with self._at(params):
            return self._values(self._clients)

    def evaluate_held_out(self, params: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """The same on rows not trained on, where there are such; −∞ for a client that has none."""
        if self._held_out is None:
            return None
        with self._at(params):
            return self._values(self._held_out)

    def evaluate_params(self, params: Mapping[str, Any]) -> Evaluation:
        """f_i and g_i on all rows, and a pooled constraint on all rows put together; None for a plain one."""
        with self._at(params):
            objective, constraint = self._values(self._clients)
            pooled = None
            if self.has_pooled_constraint:
                every = [len(rows) * self.functions.statistics(rows.everything()) for rows in self._clients]
                pooled = self.pool(np.sum(every, axis=0))
        return Evaluation(objective, constraint, pooled)

    def load_answer(self, params: Mapping[str, Any]) -> None:
        """Leave the module with these parameters and the running means that go with them, in ``eval`` mode."""
        self.functions.load(params)
        if self._means:
            self._find_means_anew()
        self.functions.module.eval()

    def count_rows(self, draws: HostDraws) -> Any:
        """Σ_i of the participants' rows, where a batch is all of them; else None."""
        if None not in self._batches:
            return None
        return np.asarray(sum(len(self._clients[client]) for client in draws.clients))

    def cost(self, row_count: Any) -> tuple[Any, Any]:
        """m·B_ζ values and m·E·B_g gradients; a batch of all rows counts its rows."""
        values, gradients = (row_count if size is None else self.participants * size for size in self._batches)
        return values, self.local_steps * gradients

    def digest(self) -> dict[str, str]:
        """Digests of the functions and of the data."""
        of = self.functions
        kinds = sorted({type(part) for part in of.module.modules()}, key=lambda kind: kind.__qualname__)
        fixed = {name: value for name, value in of.module.state_dict().items() if name not in of.trained}
        for name in self._means.read():  # these are found anew
            fixed.pop(name, None)
        functions = function_digest(
            of.objective, of.constraint, of.stand_in, of.optimizer, *(kind.forward for kind in kinds), fixed
        )
        return {
            "module": without_addresses(repr(of.module)),
            "local_steps": str(self.local_steps),
            "participants": str(self.participants),
            "batches": f"{tuple(self._batches)}, replace={self._replace}",
            "clients": function_digest(*(rows.digest() for rows in self._clients)),
            "program": functions,
            "torch": torch.__version__,
            **({} if self.client_optimum is None else {"client_optimum": str(self.client_optimum.tolist())}),
        }

    def _less(self, client: Any, values: np.ndarray) -> np.ndarray:
        """f and g with the client's own best taken off f."""
        if self.client_optimum is not None:
            values[0] -= self.client_optimum[client]
        return values

    def _drawn(self, client: Any, draws: HostDraws, purpose: int) -> Generator[Any]:
        rows, size = self._clients[client], self._batches[purpose]
        if size is not None and size >= len(rows) and self._replace is None:
            size = None
        return rows.batches((draws.seed, int(client), purpose), size, self._replace is not False)

    @contextmanager
    def _at(self, params: Mapping[str, Any]) -> Iterator[None]:
        """Within, the module has these parameters and the running means found at them; after, the round's means."""
        before = self.buffers()
        self.functions.load(params)
        try:
            if before is not None:
                self._find_means_anew()
            yield
        finally:
            if before is not None:
                self._means.write(before)

    def _find_means_anew(self) -> None:
        self._means.find_anew(rows.everything() for rows in self._clients)

    def _values(self, clients: Sequence[TorchRows | None]) -> tuple[np.ndarray, np.ndarray]:
        nothing = np.full(1 + self.constraints, -np.inf)
        told = [
            nothing if rows is None else self._less(client, self.functions.values(rows.everything()))
            for client, rows in enumerate(clients)
        ]
        values = np.asarray(told, self._dtype)
        return values[:, 0], values[:, 1:]
