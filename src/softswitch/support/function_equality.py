"""What a Python function is, as a digest: its code, and what it closes over."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from softswitch.support.tracing import strip_addresses


def function_digest(*functions: Any) -> str:
    """A digest of functions: their code, defaults, and the values that they take from around them.

    What those refer to in turn is followed through functions, methods, partials, containers, dataclasses, modules with
    weights, and objects that do not say by their repr what they are; an array counts with its numbers, anything else
    with its repr. A change that is only in a library's code is not seen.
    """
    digest = hashlib.sha256()
    seen: dict[int, Any] = {}
    for function in functions:
        _add(digest, function, seen)
    return digest.hexdigest()


def _add(digest: Any, value: Any, seen: dict[int, Any]) -> None:
    digest.update(type(value).__qualname__.encode())
    if _is_array(value):
        array = _array(value)
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes())
        return
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | ModuleType | type):
        digest.update(strip_addresses(repr(value)).encode())
        return
    if id(value) in seen:
        return
    seen[id(value)] = value  # kept until the end, so that nothing else gets its id
    for part in _parts(value):
        if isinstance(part, CodeType):
            _add_code(digest, part)
        else:
            _add(digest, part, seen)


def _parts(value: Any) -> Iterable[Any]:
    """What a value is made of."""
    if isinstance(value, FunctionType):
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *_surroundings(value)]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return value
    if is_dataclass(value):
        return [getattr(value, entry.name) for entry in fields(value)]
    if hasattr(value, "state_dict"):  # a module with weights
        return [strip_addresses(repr(value)), value.state_dict()]
    own_call = type(value).__call__ if callable(value) else None
    called = [own_call] if isinstance(own_call, FunctionType) else []
    described = any("__repr__" in vars(kind) for kind in type(value).__mro__[:-1])
    return [*called, strip_addresses(repr(value)) if described or not hasattr(value, "__dict__") else vars(value)]


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and not isinstance(value, type)


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # NumPy has none
            value = value.float()
    return np.asarray(value)


def _add_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
        elif isinstance(constant, frozenset):
            digest.update(repr(sorted(map(repr, constant))).encode())
        elif not isinstance(constant, str) or constant is not code.co_consts[0]:  # a docstring computes nothing
            digest.update(repr(constant).encode())


def _surroundings(function: FunctionType) -> list[Any]:
    """What a function takes from where it was written: closed-over values, and its module's own names."""
    found: list[Any] = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not yet filled
            continue
    own = function.__globals__
    for name in sorted(referenced_names(function.__code__) & set(own)):
        value = own[name]
        if isinstance(value, FunctionType) and value.__module__ != function.__module__:
            continue  # a library's
        if not isinstance(value, ModuleType | type | BuiltinFunctionType):
            found.append((name, value))
    return found


def referenced_names(code: CodeType) -> set[str]:
    """The names that a function's code looks up, inner functions' and comprehensions' included."""
    inner = (referenced_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


LIBRARIES = {"builtins", "equinox", "flax", "functools", "itertools", "jax", "math", "numpy", "operator", "optax"}
"""Whose names mean the same as long as the process lives."""

MAX_VALUES = 2000
"""So many are looked at; a function that refers to more is like itself only."""


class ComparableFunction:
    """A function, equal to every function that is like it.

    Attributes:
        function: the function itself, or None for none.
    """

    def __init__(self, function: Callable[..., Any] | None) -> None:
        self.function = function
        key = _Keys().of(function)
        self._key: Hashable = _Itself(function) if key is None else key
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ComparableFunction) and self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


class _Itself:
    """Any object, equal to itself only."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


class _Keys:
    """What values are like; None where that cannot be said."""

    def __init__(self) -> None:
        self._left, self._within = MAX_VALUES, set[int]()

    def of(self, value: Any) -> Hashable | None:
        """Of one value."""
        self._left -= 1
        if self._left < 0:
            return None
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return (type(value), repr(value))
        if isinstance(value, tuple):
            return self._all(type(value), value)
        if isinstance(value, partial):
            return self._all(partial, [value.func, value.args, *sorted(value.keywords.items())])
        if isinstance(value, FunctionType):
            if id(value) in self._within:  # it calls itself
                return None
            self._within.add(id(value))
            key = self._of_function(value)
            self._within.discard(id(value))
            return key
        if isinstance(value, type):
            return _Itself(value) if _known(value.__module__) else None
        if is_dataclass(value) and getattr(type(value), "__dataclass_params__").frozen:  # noqa: B009
            return self._all(type(value), [getattr(value, entry.name) for entry in fields(value)])
        return _Itself(value) if _never_changes(value) else None

    def _of_function(self, function: FunctionType) -> Hashable | None:
        own = _known(function.__globals__.get("__name__", ""))  # ``__module__`` may be another's, by functools.wraps
        if own and function.__closure__ is None:
            return _Itself(function)
        if function.__dict__ and not own:
            return None
        try:
            closed = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:  # one is not filled yet
            return None
        if own:  # nobody else can reach a list that it closes over
            closed = [tuple(value) if isinstance(value, list) else value for value in closed]
        around = [] if own else _global_values(function)
        keywords = sorted((function.__kwdefaults__ or {}).items())
        return self._all(function.__code__, [function.__defaults__, *keywords, *closed, *around])

    def _all(self, kind: Any, values: Iterable[Any]) -> Hashable | None:
        keys = []
        for value in values:
            key = self.of(value)
            if key is None:
                return None
            keys.append(key)
        return (kind, *keys)


def _never_changes(value: Any) -> bool:
    """Whether an object is a JAX array, a known library, or one of its own functions by name."""
    if isinstance(value, jax.Array):
        return not isinstance(value, jax.core.Tracer)
    if isinstance(value, ModuleType):
        return _known(value.__name__)
    if isinstance(value, BuiltinFunctionType) and value.__self__ is not None:
        return isinstance(value.__self__, ModuleType) and _known(value.__self__.__name__)
    module = getattr(value, "__module__", None) or ""
    home = sys.modules.get(module)
    return _known(module) and home is not None and getattr(home, getattr(value, "__name__", ""), None) is value


def _global_values(function: FunctionType) -> list[Any]:
    """What a function's names mean in its module, those of inner functions included; modules' attributes are not."""
    own = function.__globals__
    return [pair for name in sorted(referenced_names(function.__code__)) if name in own for pair in (name, own[name])]


def _known(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES
