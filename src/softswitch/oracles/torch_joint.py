"""PyTorch clients computed together: one call of the module on the rows of several clients.

There are two ways. With ``torch.func.vmap``, module and functions run once for all clients; their batches must have
equal shapes, and the functions no shapes or branches that depend on values. Otherwise the module runs once on the rows
of all clients, and the functions on each client's part of its outputs; the module must not mix rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.func import functional_call, vmap
from torch.utils import _pytree as pytree

from softswitch.methods.messages import LocalLoss
from softswitch.oracles.torch_functions import (
    Function,
    FunctionValues,
    ModuleFunctions,
    Optimizer,
    Weights,
    are_same,
    preserve_module,
    replaced_forward,
)
from softswitch.oracles.torch_rows import seeded

TOLERANCES = {torch.float32: (1e-3, 1e-4), torch.float64: (1e-8, 1e-10)}  # relative and absolute, by dtype


class ClientBatches:
    """A batch of each of several clients: a list of parts, or one batch that is stacked along a new first axis."""

    def __init__(self, parts: Sequence[Any] | None = None, stacked: tuple[torch.Tensor, ...] | None = None) -> None:
        self._parts, self._stacked = parts, stacked

    def __len__(self) -> int:
        return len(self.parts)

    @cached_property
    def parts(self) -> Sequence[Any]:
        """The clients' batches."""
        if self._stacked is None:
            return self._parts or ()
        return list(zip(*(column.unbind() for column in self._stacked), strict=True))

    @cached_property
    def stacked(self) -> Any:
        """The clients' batches as one batch whose first axis is that of the clients; None if their shapes differ."""
        if self._parts is None:
            return self._stacked
        leaves, structures = zip(*map(pytree.tree_flatten, self._parts), strict=True)
        if any(structure != structures[0] for structure in structures):
            return None
        columns = list(zip(*leaves, strict=True))
        if not all(isinstance(leaf, torch.Tensor) for leaf in leaves[0]):
            return None
        if any(leaf.shape != column[0].shape for column in columns for leaf in column):
            return None
        return pytree.tree_unflatten([torch.stack(column) for column in columns], structures[0])


class LocalLosses(NamedTuple):
    """Coefficients of the local losses of several clients, as tensors; see ``LocalLoss``."""

    objective: torch.Tensor  # a_i, one per client
    constraint: torch.Tensor  # b_i, clients × constraints
    penalty: float
    tolerance: float
    needs_objective: bool  # whether some a_i is not 0
    needs_constraint: bool  # whether some b_i or the penalty is not 0

    @classmethod
    def of(cls, loss: LocalLoss, places: np.ndarray, like: torch.Tensor) -> LocalLosses:
        """Return the coefficients of the participants ``places``, in the dtype and on the device of ``like``."""
        mix = np.array(loss.constraint, float)
        objective = np.broadcast_to(np.array(loss.objective, float), len(mix))[places].copy()
        mix, penalty = mix[places], float(loss.penalty)
        a, b = (torch.from_numpy(values).to(like.device, like.dtype) for values in (objective, mix))
        return cls(a, b, penalty, float(loss.tolerance), bool(objective.any()), bool(mix.any() or penalty))


class JointFunctions:
    """Functions of a module for several clients at once.

    Attributes:
        vmap_error: Reason why ``vmap`` is not possible; None if it is.
        split_error: Reason why the module cannot run once on the rows of several clients; None if it can.
        row_bytes: Memory that the gradient of a row needs, in bytes.
    """

    def __init__(self, functions: ModuleFunctions, probe: Sequence[Any], *, compiles: bool = False) -> None:
        """Try both ways on ``probe``, two batches of which the second may be shorter."""
        self._functions, self._compiles = functions, False
        self._mapped: dict[Any, Callable[..., torch.Tensor]] = {}
        with preserve_module(functions.module):
            self.row_bytes = self._measure(probe[0])
            errors = [self._try(way, probe) for way in ("vmap_error", "split_error")]
        self.vmap_error, self.split_error = errors
        self._compiles, self._compile_seconds = compiles and self.vmap_error is None, 0.0
        self._compile_error: str | None = None

    @property
    def is_possible(self) -> bool:
        """Whether clients can be computed together in one of the two ways."""
        return self.vmap_error is None or self.split_error is None

    def __str__(self) -> str:
        if self.vmap_error is not None:
            return f"module computed together, functions one after another, because {self.vmap_error}"
        if self._compile_error is not None:
            return f"computed together by vmap, not compiled, because {self._compile_error}"
        compiled = f", compiled in {self._compile_seconds:.0f} s" if self._compiles else ""
        return f"computed together by vmap{compiled}"

    def report(self, batches: ClientBatches) -> torch.Tensor:
        """Return f followed by all g of each client, in ``eval`` mode, clients × values."""
        self._functions.module.eval()
        with torch.no_grad():
            return self.values(batches, (self._functions.objective, self._functions.constraint))

    def weighted_gradient(self, batches: ClientBatches, losses: LocalLosses, weights: torch.Tensor) -> Weights:
        """Return Σ r_i ∇h_i at the parameters of the module, in ``train`` mode, by one backward pass."""
        self._functions.module.train()
        return _gradient(weights @ self._local_losses(batches, losses), self._functions.trained)

    def directions(
        self,
        batches: Iterable[ClientBatches],
        losses: LocalLosses,
        local_steps: int,
        step_size: float,
        optimizer: Optimizer | None = None,
    ) -> Weights:
        """Return u_i = (w_k − w_{k,E})/(γE) of each client, stacked, after E steps from the parameters of the module.

        ``optimizer`` must treat every number on its own, because it steps with all clients together.
        """
        self._functions.module.train()
        trained = self._functions.trained
        point = _copies(trained, len(losses.objective))
        total = {name: torch.zeros_like(weight) for name, weight in point.items()}
        active = None if optimizer is None or step_size == 0 else optimizer(list(point.values()), lr=step_size)
        for step, drawn in enumerate(islice(batches, local_steps), start=1):
            for name, slope in _gradient(self._local_losses(drawn, losses, point).sum(), point).items():
                if active is not None:
                    point[name].grad = slope
                    continue
                total[name] += slope
                if step < local_steps:
                    with torch.no_grad():
                        point[name].sub_(slope, alpha=step_size)
            if active is not None:
                active.step()
        if active is None:
            return total if local_steps == 1 else {name: part / local_steps for name, part in total.items()}
        scale = 1 / (step_size * local_steps)
        return {name: (trained[name].detach() - weight.detach()) * scale for name, weight in point.items()}

    def _local_losses(self, batches: ClientBatches, losses: LocalLosses, point: Weights | None = None) -> torch.Tensor:
        """Return a_i·f_i + <b_i, g_i> + c·Σ max(0, g_i − ε) of each client, with the surrogate for g in gradients."""
        functions, count = self._functions, losses.constraint.shape[1]
        parts: list[Function] = [functions.objective] * losses.needs_objective
        if losses.needs_constraint:
            parts.append(functions.surrogate or functions.constraint)
        if has_jumps := bool(losses.penalty) and functions.surrogate is not None:
            parts.append(functions.constraint)
        total = torch.zeros_like(losses.objective)
        if not parts:
            return total
        values = self.values(batches, parts, point)
        if losses.needs_objective:
            total, values = total + losses.objective * values[:, 0], values[:, 1:]
        constraint = values[:, :count]
        if losses.needs_constraint:
            total = total + (losses.constraint * constraint).sum(dim=1)
        if losses.penalty:
            excess = torch.relu(constraint - losses.tolerance)
            if has_jumps:  # the sum of the surrogate over the constraints with g > ε
                excess = torch.where(values[:, count:] > losses.tolerance, constraint, torch.zeros_like(constraint))
            total = total + losses.penalty * excess.sum(dim=1)
        return total

    def values(self, batches: ClientBatches, chosen: Sequence[Function], point: Weights | None = None) -> torch.Tensor:
        """Return the values of functions at each client, clients × values.

        ``point`` has the parameters of each client, stacked. Default: those of the module, for all clients.
        """
        if self.vmap_error is None and batches.stacked is not None:
            return self._map(tuple(chosen), point is not None)(batches.stacked, point)
        if self.split_error is None:
            return self._split(batches.parts, chosen, point)
        call = FunctionValues(self._functions.module, chosen)
        return torch.stack([call.at(_row(point, i), part) for i, part in enumerate(batches.parts)])

    def _map(self, chosen: tuple[Function, ...], has_point: bool) -> Callable[..., torch.Tensor]:
        """Return functions mapped over clients, as ``(stacked batches, point) -> values``; compiled if requested."""
        if (key := (chosen, has_point)) not in self._mapped:
            # The compiler merges equal calls of the module by itself.
            call = FunctionValues(self._functions.module, chosen, shares_outputs=not self._compiles)

            def values(batch: Any, point: Weights | None) -> torch.Tensor:
                return call.at(point, batch)

            mapped = vmap(values, in_dims=(0, 0 if has_point else None), randomness="different")
            if not self._compiles:
                self._mapped[key] = mapped
                return mapped
            compiled = self._mapped[key] = torch.compile(mapped)

            def first_call(batch: Any, point: Weights | None) -> torch.Tensor:
                start = time.perf_counter()
                try:
                    values: torch.Tensor = compiled(batch, point)
                except Exception as error:  # a compiler is missing, or does not support the module
                    self._compile_error, self._mapped[key] = first_line(error), mapped
                    values = mapped(batch, point)
                self._compile_seconds += time.perf_counter() - start
                return values

            return first_call
        return self._mapped[key]

    def _split(self, parts: Sequence[Any], chosen: Sequence[Function], point: Weights | None) -> torch.Tensor:
        """Return the values of functions, with the module called once on the rows of all clients."""
        columns: list[torch.Tensor] = []
        inputs: list[Any] = []
        outputs: list[Any] = []
        for function in chosen:
            call = FunctionValues(self._functions.module, [function])
            needed = [_inputs(call, part) for part in parts]
            if not columns or not all(map(are_same, inputs, needed)):
                inputs, outputs = needed, self._outputs(needed, point)
            values = []
            for i, part in enumerate(parts):
                with replaced_forward(call.module, _Replay(outputs[i])):
                    values.append(call.at(_row(point, i), part))
            columns.append(torch.stack(values))
        return torch.cat(columns, dim=1)

    def _outputs(self, inputs: Sequence[Any], point: Weights | None) -> list[Any]:
        """Return the module's outputs at each client, from one call; None for a client whose functions need none."""
        module, places = self._functions.module, [i for i, one in enumerate(inputs) if one is not None]
        outputs: list[Any] = [None] * len(inputs)
        if not places:
            return outputs
        leaves, structures = zip(*(pytree.tree_flatten(inputs[i]) for i in places), strict=True)
        columns = list(zip(*leaves, strict=True))
        tensors = [column for column in columns if isinstance(column[0], torch.Tensor)]
        sizes = [len(leaf) for leaf in tensors[0]]
        if any([len(leaf) for leaf in column] != sizes for column in tensors):
            raise ValueError("the arguments of the module do not have a row for each row of a batch")

        def call(weights: Weights | None, joint: Sequence[torch.Tensor]) -> Any:
            rows = iter(joint)
            flat = [next(rows) if isinstance(column[0], torch.Tensor) else column[0] for column in columns]
            args, kwargs = pytree.tree_unflatten(flat, structures[0])
            return module(*args, **kwargs) if weights is None else functional_call(module, weights, args, kwargs)

        if point is None:
            found, structure = pytree.tree_flatten(call(None, [torch.cat(column) for column in tensors]))
            if any(len(leaf) != sum(sizes) for leaf in found):
                raise ValueError("the outputs of the module do not have a row for each row of a batch")
            split: Any = [leaf.split(sizes) for leaf in found]
        else:
            padded = [torch.nn.utils.rnn.pad_sequence(list(column), batch_first=True) for column in tensors]
            weights = {name: weight[places] for name, weight in point.items()}
            found, structure = pytree.tree_flatten(vmap(call, randomness="different")(weights, padded))
            split = [[leaf[k, :size] for k, size in enumerate(sizes)] for leaf in found]
        for k, i in enumerate(places):
            outputs[i] = pytree.tree_unflatten([leaf[k] for leaf in split], structure)
        return outputs

    def _measure(self, batch: Any) -> float:
        """Return the bytes that a gradient keeps for each row of a batch."""
        functions, total = self._functions, 0
        weights = {weight.untyped_storage().data_ptr() for weight in functions.module.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            if tensor.untyped_storage().data_ptr() not in weights:
                total += tensor.numel() * tensor.element_size()
            return tensor

        functions.module.eval()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            FunctionValues(functions.module, (functions.objective,)).at(None, batch)
        rows = [len(leaf) for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.ndim]
        return total / max(rows, default=1)

    def _try(self, way: str, probe: Sequence[Any]) -> str | None:
        """Compare one way with clients computed one after another; return the reason why it is not possible, or None.

        Gradients are compared in ``eval`` mode, and in ``train`` mode unless layers draw random numbers.
        """
        functions = self._functions
        chosen = [functions.objective, functions.constraint, *([functions.surrogate] if functions.surrogate else [])]
        parts = [probe[0], probe[0]] if way == "vmap_error" else probe
        self.vmap_error = self.split_error = "only the other way is tried"
        try:
            for mode in (False, True):
                functions.module.train(mode)
                setattr(self, way, "it is not tried")
                expected, again = self._gradients(parts, chosen, seed=0), self._gradients(parts, chosen, seed=1)
                setattr(self, way, None)
                found = self._gradients(parts, chosen, seed=0)
                if all(map(torch.equal, expected, again)):
                    for one, other in zip(expected, found, strict=True):
                        relative, absolute = TOLERANCES.get(one.dtype, TOLERANCES[torch.float32])
                        if not torch.allclose(one, other, relative, absolute, equal_nan=True):
                            return "the rows of other clients change the values of a client"
        except Exception as error:  # whatever a module or function may raise
            return first_line(error)
        return None

    def _gradients(self, parts: Sequence[Any], chosen: Sequence[Function], *, seed: int) -> list[torch.Tensor]:
        """Return the gradient of the sum of all finite values, at shared parameters and at copies for each client."""
        trained = self._functions.trained
        with seeded((seed,)):
            total = _finite_sum(self.values(ClientBatches(parts), chosen))
            point = _copies(trained, len(parts))
            each = _gradient(_finite_sum(self.values(ClientBatches(parts), chosen, point)), point)
        return [total.detach(), *_gradient(total, trained).values(), *each.values()]


class _CalledError(BaseException):
    """Raised in place of a call of the module, with its arguments; no ``except Exception`` of a user catches it."""

    def __init__(self, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        super().__init__()
        self.inputs = inputs


class _Replay:
    """A forward method that returns given outputs once."""

    def __init__(self, outputs: Any) -> None:
        self._outputs, self._calls = outputs, 0

    def __call__(self, *_: Any, **__: Any) -> Any:
        self._calls += 1
        if self._calls > 1:
            raise ValueError("a function calls the module more than once")
        return self._outputs


def first_line(error: Exception) -> str:
    """Return the first line of the message of an error, or its type if it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _inputs(call: FunctionValues, batch: Any) -> Any:
    """Return the arguments with which a function calls the module, as (args, kwargs); None if it does not."""

    def stop(*args: Any, **kwargs: Any) -> None:
        raise _CalledError((args, kwargs))

    with replaced_forward(call.module, stop):
        try:
            call(batch)
        except _CalledError as called:
            return called.inputs
    return None


def _row(point: Weights | None, client: int) -> Weights | None:
    return None if point is None else {name: weight[client] for name, weight in point.items()}


def _copies(weights: Mapping[str, torch.Tensor], count: int) -> Weights:
    """Return copies of parameters, stacked along a new first axis, that require a gradient."""
    stacked = {name: weight.detach().expand(count, *weight.shape) for name, weight in weights.items()}
    return {name: weight.clone().requires_grad_() for name, weight in stacked.items()}


def _gradient(value: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> Weights:
    """Return the gradient of a scalar by name; zeros if it is constant."""
    if not value.requires_grad:
        return {name: torch.zeros_like(weight) for name, weight in weights.items()}
    slopes = torch.autograd.grad(value, list(weights.values()), materialize_grads=True)
    return dict(zip(weights, slopes, strict=True))


def _finite_sum(values: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isfinite(values), values, torch.zeros_like(values)).sum()
