"""Option groups of ``solve`` and similar functions: Sampling, Compute, Logging, Output; and PyTorch data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from softswitch.methods.memory import Memory
from softswitch.problem.choices import ANSWERS
from softswitch.support import checks

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset

    from softswitch.data.client_data import ClientData

BatchSize = int | None | Literal["auto"]
ValueBatchSize = int | None | Literal["same", "auto"]


def count_participants(participation: float, clients: int) -> int:
    """Return m, the number of clients in a round: ``participation`` · ``clients``, rounded, at least 1."""
    return max(1, round(participation * clients))


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options for the sampling of clients in a round, and of rows at a client.

    ``Sampling()`` means all clients, one local step, all rows. ``Sampling.automatic()`` leaves batch sizes and client
    memory to an automatic run.

    Attributes:
        participation: Fraction m/n of the clients that is drawn for each round, in (0, 1]. Default: 1.
        local_steps: Number of gradient steps E >= 1 that a client takes in a round. Default: 1.
        batch_size: Number of rows B_g that a client draws for a gradient. None: all of its rows. "auto": chosen by an
            automatic run. Default: None.
        value_batch_size: Number of rows B_ζ that a client draws for its report; None: all of its rows. "same": as
            ``batch_size``. "auto": chosen by an automatic run. Default: "same".
        replace: Draw rows with replacement. Default: with replacement, but a client that has at most ``batch_size``
            rows uses each of them once.
        memory: Settings of the server's memory of earlier reports, or None for no memory. "auto": no memory for a
            method with given settings, unless it is robust and only some clients take part. Default: "auto".
    """

    participation: float = 1.0
    local_steps: int = 1
    batch_size: BatchSize = None
    value_batch_size: ValueBatchSize = "same"
    replace: bool | None = None
    memory: Memory | str | None = "auto"

    def __post_init__(self) -> None:
        checks.check_integer("local_steps", self.local_steps, minimum=1)
        checks.check_real("participation", self.participation, above=0, maximum=1)
        for name, words in (("batch_size", ("auto",)), ("value_batch_size", ("same", "auto"))):
            value = getattr(self, name)
            if value is not None and value not in words:
                checks.check_integer(name, value, minimum=1)
        if self.memory is not None and self.memory != "auto":
            checks.check_instance("memory", self.memory, Memory)

    @classmethod
    def automatic(cls, **given: Any) -> Sampling:
        """Return a sampling whose batch sizes are chosen by an automatic run.

        Args:
            given: Values of other attributes, such as ``participation=0.3``.
        """
        return cls(**{"batch_size": "auto", "value_batch_size": "auto"} | given)

    @property
    def is_automatic(self) -> bool:
        """Whether ``batch_size`` or ``value_batch_size`` is "auto"."""
        return "auto" in (self.batch_size, self.value_batch_size)

    def participants(self, clients: int) -> int:
        """Return m, the number of clients in a round: ``participation`` · ``clients``, rounded, at least 1.

        Args:
            clients: Number of clients n.
        """
        return count_participants(self.participation, clients)


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Options for where and how clients compute.

    Attributes:
        devices: Devices to shard the clients over: "all", a number, or some of ``jax.devices()``. Each holds the rows
            of its clients only. Default: the default device.
        client_batch_size: Number of clients that are computed in parallel. Default: as many as fit in 256 MiB, or in
            an eighth of an accelerator's memory; for PyTorch modules 4 MiB, or a quarter of its memory.
        group_by_size: Compute clients of similar size together, which avoids padding. It needs clients that use all
            their rows, and changes results by rounding errors. Default: False; automatic runs may set it.
        compile: Compile the rounds of a PyTorch module with ``torch.compile``, which makes them faster and the first
            ones slower. Default: False.
        dtype: "bfloat16" computes a PyTorch module by autocast; its parameters keep their dtype. Default: None.
    """

    devices: str | int | Sequence[Any] | None = None
    client_batch_size: int | None = None
    group_by_size: bool = False
    compile: bool = False
    dtype: str | None = None

    def __post_init__(self) -> None:
        checks.check_given(self, checks.check_choice, "dtype", choices=("bfloat16",))
        checks.check_given(self, checks.check_integer, "client_batch_size", minimum=1)


@dataclass(frozen=True, kw_only=True)
class Logging:
    """Options for callbacks, progress display, evaluations during a run, and the recorded history.

    Attributes:
        callbacks: Functions that are called with a ``Chunk`` after every chunk of rounds. One that returns a true value
            stops the run. Default: none.
        progress: Show a progress bar. Default: only on a terminal.
        eval_every: Number of rounds between evaluations of F and G on all rows of all clients; 0 for none. Default: up
            to 20 evaluations, fewer if they would cost more than the training.
        held_out: Rows that are not trained on, evaluated in the same rounds into ``history.held_out``. Default: none.
        record_clients: Record the report of every participant in every round, in ``history.clients``. Default: False.
    """

    callbacks: Sequence[Callable[..., Any]] = ()
    progress: bool | None = None
    eval_every: int | None = None
    held_out: ClientData | TorchData | Mapping[Any, Any] | Sequence[Any] | None = None
    record_clients: bool = False

    def __post_init__(self) -> None:
        checks.check_given(self, checks.check_integer, "eval_every", minimum=0)


@dataclass(frozen=True, kw_only=True)
class Output:
    """Options for the iterate that a run returns, and for the lower bound on the optimum.

    Attributes:
        iterate: "average" of the feasible iterates, as published; "last"; or "best", the feasible iterate with the
            smallest reported worst objective. "auto": the average for a method with given settings; an automatic run
            returns the best of the three on all training rows. Default: "auto".
        average_last: Average only over the feasible rounds of this last fraction of the rounds, in (0, 1]. Default: 1
            as published; automatic runs use 0.5 of each restart.
        lower_bound: Compute a lower bound on the best possible objective, for ``result.gap``. Default: in automatic
            runs with at most 500 parameters, a smooth constraint and rows in memory on one device.
    """

    iterate: str = "auto"
    average_last: float | None = None
    lower_bound: bool | None = None

    def __post_init__(self) -> None:
        checks.check_choice("iterate", self.iterate, ANSWERS)
        checks.check_given(self, checks.check_real, "average_last", above=0, maximum=1)


@dataclass(frozen=True, eq=False)
class TorchData:
    """Clients with PyTorch data sets, for a problem whose start is a PyTorch module.

    The clients share the module, and are computed together in this process where module and functions allow it.

    Attributes:
        datasets: By client name a ``Dataset`` with a length, or a ``DataLoader``, whose batches are then used.
        optimizer: Optimizer of the local steps, ``(parameters, lr=γ) -> optimizer``, such as ``torch.optim.Adam``,
            created anew in every round. Default: plain gradient steps.
        device: Device to compute on, such as "cuda". Default: the device of the module.
        client_optimum: Minimal objective f_i* of each client, set by ``with_regret``. Default: None, no regrets.
    """

    datasets: Mapping[Any, Dataset | DataLoader]
    optimizer: Callable[..., Any] | None = None
    device: str | torch.device | None = None
    client_optimum: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.datasets, Mapping) or not self.datasets:
            raise ValueError(f"datasets must be a mapping from names to at least one data set, not {self.datasets!r}")

    @property
    def names(self) -> tuple[Any, ...]:
        """Names of the clients, the keys of ``datasets``."""
        return tuple(self.datasets)

    def __len__(self) -> int:
        return len(self.datasets)


def changed_options(given: Any, *allowed: str) -> list[str]:
    """Return the names of the attributes of ``given`` that differ from their defaults, without ``allowed``."""
    changed = [field.name for field in fields(given) if getattr(given, field.name) != field.default]
    return [name for name in changed if name not in allowed]
