"""TorchOracle: clients with PyTorch data and a shared module, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

import numpy as np
import torch

from softswitch.methods.messages import Decision, Reports
from softswitch.oracles.base import HostDraws, HostOracle
from softswitch.oracles.batch_sizes import Batches, draw_rows
from softswitch.oracles.torch_functions import BatchNormStatistics, ModuleFunctions, Weights
from softswitch.oracles.torch_joint import ClientBatches, JointFunctions, LocalLosses, first_line
from softswitch.oracles.torch_rows import TensorStore, TorchRows, seeded
from softswitch.support.tracing import function_digest, strip_addresses

REPORT, UPDATE, LAYERS = 0, 1, 2  # random streams: rows of reports, rows of gradients, and layers such as dropout
PROBE_ROWS = 8  # number of rows of a client on which ways of computing are compared
SLICE_BYTES = 2**22  # memory of the clients that are computed together on a processor: more is slow beyond its caches
DEVICE_SHARE = 0.25  # likewise on an accelerator, as a share of its memory
COPIES = 4  # number of copies of the parameters that the local steps of a client need
ELEMENTWISE = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
Arrays = Mapping[str, Any]


class Drawn(NamedTuple):
    """Batches of participants, as functions of their places."""

    together: Callable[[Any], Iterator[ClientBatches]]  # of several clients, step by step
    separate: Callable[[Any], Iterator[Any]]  # client by client, each with the batches of its steps


class TorchOracle(HostOracle):
    """Oracle of clients that hold PyTorch data sets and take gradient steps of one module.

    Clients are computed together, in slices that fit the memory, where that is possible; ``path`` says how, and why.

    ``held_out`` has an entry for each client, None for one without such rows. By default all clients take part, with
    all rows. If ``replace`` is None, rows are drawn with replacement, but a client with no more rows than a batch uses
    each row once. ``client_optimum`` are the f_i* if objectives are regrets. ``client_batch_size`` is the number of
    clients in a slice; 1 computes one after another. ``dtype`` is that of autocast, and ``compiles`` requests
    ``torch.compile``.
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
        client_batch_size: int | None = None,
        dtype: torch.dtype | None = None,
        compiles: bool = False,
    ) -> None:
        self.client_optimum = client_optimum
        self.functions, self._clients, self._held_out = functions, clients, held_out
        self.participants, self.local_steps = participants or len(clients), local_steps
        self._batches, self._replace = batches, replace
        self.report_batch_size, self.has_held_out = batches.report, held_out is not None
        self._statistics = BatchNormStatistics(functions)
        for rows in clients:
            self._statistics.check_batches(rows, batches.update)
        self._like = next(iter(functions.trained.values()))
        self._dtype = np.float64 if any(w.dtype == torch.float64 for w in functions.trained.values()) else np.float32
        self.constraints = functions.constraints(clients[0].take(np.arange(1)))
        self.has_surrogate = functions.surrogate is not None
        # Batch-norm statistics belong to the current iterate: a report at an earlier one would use others.
        self.can_repeat_reports = not self._statistics
        self.reports_full_data = self.participants == len(clients) and batches.report is None and not self._statistics
        self._sizes = np.array([len(rows) for rows in clients])
        self._store = TensorStore.of(clients, self._like.device)
        self._client_batch_size, self._dtype_of_autocast, self._compiles = client_batch_size, dtype, compiles
        self._joint, self._reason = self._choose_path()
        self._slice_bytes = SLICE_BYTES
        if self._like.device.type == "cuda":  # of all its memory: free memory would change slices from run to run
            self._slice_bytes = int(DEVICE_SHARE * torch.cuda.get_device_properties(self._like.device).total_memory)

    def _choose_path(self) -> tuple[JointFunctions | None, str | None]:
        """Return the functions of several clients together, or None and the reason to compute one after another."""
        functions, reason = self.functions, None
        if self._statistics:
            reason = "batch normalisation has statistics that change in every client's steps"
        elif self._client_batch_size == 1:
            reason = "client_batch_size is 1"
        elif functions.optimizer is not None:
            created = type(functions.optimizer(list(functions.trained.values()), lr=0.1))
            if created not in ELEMENTWISE:
                reason = f"steps of {created.__name__} may depend on all numbers of a client together"
        if reason is None:
            count = min(PROBE_ROWS, *(len(rows) for rows in self._clients[:2]))
            few = [np.arange(count), np.arange(max(1, count - 1))]
            probe = [self._clients[i % len(self._clients)].take(rows) for i, rows in enumerate(few)]
            joint = JointFunctions(functions, probe, compiles=self._compiles)
            if self._batches.update is None and len(set(self._sizes.tolist())) > 1:
                joint.vmap_error = "the batches have different numbers of rows"
            if joint.is_possible:
                return joint, None
            reason = joint.split_error
        return None, reason

    @property
    def path(self) -> str:
        """Whether clients are computed together or one after another, and why."""
        reason = self._reason
        if self._joint is not None:
            if self._slice_size(UPDATE) > 1:
                return str(self._joint)
            reason = "the memory for the gradient of a client is large"
        return f"computed one after another, because {reason}"

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
        drawn = self._draw(draws, REPORT, 1)
        values = self._report(params, len(draws.clients), drawn, REPORT)
        if self.client_optimum is not None:
            values[:, 0] -= self.client_optimum[draws.clients]
        mask: Any = np.ones(len(draws.clients), bool)
        reported: Any = values.astype(self._dtype)
        return Reports(reported[:, 0], reported[:, 1:], None, mask), None

    def direction(
        self, params: Arrays, draws: HostDraws, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> dict[str, np.ndarray]:
        """Return Σ_i r_i u_i; clients of weight 0 are skipped."""
        weights = np.asarray(decision.weights, float)
        places = np.flatnonzero(weights)
        takes_one_step = self.local_steps == 1 and (self.functions.optimizer is None or step_size == 0)
        if takes_one_step and not self._statistics:
            total = self._weighted_gradient(params, draws, decision, weights, places)
        else:
            total = {name: torch.zeros_like(weight) for name, weight in self.functions.trained.items()}
            for some, directions in self._directions(places, params, draws, decision, step_size):
                for name, part in directions.items():
                    if isinstance(some, int):
                        total[name].add_(part, alpha=weights[some])
                    else:
                        total[name] += torch.tensordot(self._tensor(weights[some]).to(part.dtype), part, 1)
        return {name: part.cpu().numpy() for name, part in total.items()}

    def directions(
        self, params: Arrays, draws: HostDraws, kept: Any, decision: Decision, switches: bool, step_size: float
    ) -> dict[str, np.ndarray]:
        """Return every u_i, stacked along the first axis."""
        each = self._directions(np.arange(len(draws.clients)), params, draws, decision, step_size)
        parts = [
            {name: (part[None] if isinstance(some, int) else part).cpu().numpy() for name, part in directions.items()}
            for some, directions in each
        ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _weighted_gradient(
        self, params: Arrays, draws: HostDraws, decision: Decision, weights: np.ndarray, places: np.ndarray
    ) -> Weights:
        """Return Σ_i r_i ∇h_i of the participants ``places``."""
        drawn, functions = self._draw(draws, UPDATE, 1), self.functions
        functions.load(params)
        total = {name: torch.zeros_like(weight) for name, weight in functions.trained.items()}

        def compute(joint: JointFunctions, some: np.ndarray) -> Weights:
            losses = LocalLosses.of(decision.local_loss, some, self._like)
            with seeded((draws.seed, int(some[0]), LAYERS)), self._autocast():
                return joint.weighted_gradient(next(drawn.together(some)), losses, self._tensor(weights[some]))

        for some, part in self._compute_jointly(places, UPDATE, compute):
            if part is None:
                losses = map(decision.local_loss.of, some.tolist())
                with seeded((draws.seed, LAYERS)), self._autocast():
                    batches = drawn.separate(some)
                    part = functions.weighted_gradient(zip(weights[some].tolist(), batches, losses, strict=True))
            for name, slope in part.items():
                total[name] += slope
        return total

    def _directions(
        self, places: np.ndarray, params: Arrays, draws: HostDraws, decision: Decision, step_size: float
    ) -> Iterator[tuple[np.ndarray | int, Weights]]:
        """Yield (places, stacked directions) of slices of participants, or (place, direction) of one after another.

        The layers' statistics are then the mean of those after the participants' steps.
        """
        drawn, functions = self._draw(draws, UPDATE, self.local_steps), self.functions

        def compute(joint: JointFunctions, some: np.ndarray) -> Weights:
            functions.load(params)
            losses = LocalLosses.of(decision.local_loss, some, self._like)
            with seeded((draws.seed, int(some[0]), LAYERS)), self._autocast():
                return joint.directions(drawn.together(some), losses, self.local_steps, step_size, functions.optimizer)

        for some, directions in self._compute_jointly(places, UPDATE, compute):
            if directions is not None:
                yield some, directions
                continue
            before, after, batches = self._statistics.read(), [], drawn.separate(some)
            functions.load(params)
            start = {name: weight.detach().clone() for name, weight in functions.trained.items()}
            for place in some.tolist():
                functions.load(start)
                if before:
                    self._statistics.write(before)
                loss = decision.local_loss.of(place)
                with seeded((draws.seed, int(draws.clients[place]), LAYERS)), self._autocast():
                    direction = functions.direction(batches, loss, self.local_steps, step_size)
                yield place, direction
                if before:
                    after.append(self._statistics.read())
            self._statistics.write_mean(after)

    def _compute_jointly(
        self, places: np.ndarray, purpose: int | None, compute: Callable[[JointFunctions, np.ndarray], Any]
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """Yield ``compute`` of slices of places, and None with the places that must be computed one after another."""
        while len(places):
            if self._joint is None or (size := self._slice_size(purpose)) == 1:
                yield places, None
                return
            some = places[:size]
            try:
                value = compute(self._joint, some)
            except torch.OutOfMemoryError:
                self._client_batch_size = max(1, len(some) // 2)
            except Exception as error:  # on these batches only, such as texts of different lengths
                self._joint, self._reason = None, first_line(error)
            else:
                yield some, value
                places = places[len(some) :]

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
        return self._sizes[draws.clients].sum() if None in self._batches else None

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

    def _autocast(self) -> Any:
        """Return a context that computes in the given dtype."""
        return torch.autocast(
            self._like.device.type, self._dtype_of_autocast, enabled=self._dtype_of_autocast is not None
        )

    def _tensor(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(values)).to(self._like.device, self._like.dtype)

    def _slice_size(self, purpose: int | None) -> int:
        """Return the number of clients that are computed together; for an evaluation ``purpose`` is None."""
        if self._client_batch_size is not None or self._joint is None:
            return self._client_batch_size or 1
        size = None if purpose is None else self._batches[purpose]
        rows = int(self._sizes.max()) if size is None else size
        needed = rows * self._joint.row_bytes + (self._copies if purpose == UPDATE else 0)
        return max(1, int(self._slice_bytes / (1 + needed)))

    @property
    def _copies(self) -> int:
        """Size in bytes of the copies of the parameters that the local steps of a client need."""
        return COPIES * sum(weight.numel() * weight.element_size() for weight in self.functions.trained.values())

    @property
    def memory(self) -> str | None:
        """Description of the memory that a client's gradient needs; None if clients are computed one after another."""
        if self._joint is None:
            return None
        rows = self._batches.update or int(self._sizes.max())
        parameters = self._copies if self.local_steps > 1 else 0
        sizes = [f"{size / 2**20:,.1f} MiB" for size in (rows * self._joint.row_bytes, parameters)]
        return f"{sizes[0]} for {rows:,} rows, {sizes[1]} for copies of its parameters"

    def _draw(self, draws: HostDraws, purpose: int, steps: int) -> Drawn:
        """Return the participants' batches for ``steps`` steps."""
        size, clients = self._batches[purpose], draws.clients
        sizes = self._sizes[clients]
        uses_all = size is None or (self._replace is None and bool((size >= sizes).all()))
        is_uniform = uses_all or self._replace is not None or bool((size < sizes).all())
        store = self._store

        def draw_each(places: Any) -> Iterator[list[Any]]:
            return (self._batches_of(clients[place], draws, purpose, steps) for place in places)

        if store is None or not is_uniform:
            return Drawn(
                lambda places: map(ClientBatches, zip(*draw_each(places), strict=True)),
                lambda places: chain.from_iterable(draw_each(places)),
            )
        if uses_all:
            return Drawn(
                lambda places: repeat(ClientBatches(store.all_rows(clients[places])), steps),
                lambda places: (rows for rows in store.all_rows(clients[places]) for _ in range(steps)),
            )
        assert size is not None
        generator = np.random.default_rng((draws.seed, purpose))
        if self._replace is False:
            rows = np.array([[draw_rows(generator, n, size, False) for n in sizes] for _ in range(steps)])
        else:
            rows = generator.integers(0, sizes[None, :, None], size=(steps, len(sizes), size))
        drawn = store.places(clients, rows)
        return Drawn(
            lambda places: (ClientBatches(stacked=batch) for batch in store.batches(drawn[:, places])),
            lambda places: store.batches(drawn[:, places].swapaxes(0, 1).reshape(-1, size)),
        )

    def _batches_of(self, client: Any, draws: HostDraws, purpose: int, steps: int) -> list[Any]:
        """Return the batches of one client, whose rows are not tensors or not in one place."""
        rows, size = self._clients[client], self._batches[purpose]
        if size is not None and size >= len(rows) and self._replace is None:
            size = None
        with closing(rows.batches((draws.seed, int(client), purpose), size, self._replace is not False)) as batches:
            return list(islice(batches, steps))

    def _report(self, params: Arrays, count: int, drawn: Drawn, purpose: int | None) -> np.ndarray:
        """Return f and g on a batch of each of ``count`` clients, as float64."""
        self.functions.load(params)
        self.functions.module.eval()
        with self._autocast():
            slices = self._compute_jointly(
                np.arange(count), purpose, lambda joint, some: joint.report(next(drawn.together(some)))
            )
            values = [
                torch.stack([*map(self.functions.report, drawn.separate(some))]) if part is None else part.double()
                for some, part in slices
            ]
        return torch.cat(values).cpu().numpy()

    def _values(self, params: Arrays, clients: Sequence[TorchRows | None]) -> tuple[np.ndarray, np.ndarray]:
        """Return f_i and g_i with the batch-norm statistics of ``params``; restore those of the round afterwards."""
        before, values = self._statistics.read(), np.full((len(clients), 1 + self.constraints), -np.inf)
        known = np.array([i for i, rows in enumerate(clients) if rows is not None], int)
        store = self._store if clients is self._clients else None

        def all_rows(places: Any) -> Iterator[Any]:
            chosen = known[places]
            return iter(store.all_rows(chosen)) if store is not None else (clients[i].all_rows() for i in chosen)

        drawn = Drawn(lambda places: iter([ClientBatches([*all_rows(places)])]), all_rows)
        try:
            self.load_buffers(params, None)
            if len(known):
                values[known] = self._report(params, len(known), drawn, None)
        finally:
            self._statistics.write(before)
        if self.client_optimum is not None:
            values[:, 0] -= self.client_optimum
        return values[:, 0].astype(self._dtype), values[:, 1:].astype(self._dtype)
