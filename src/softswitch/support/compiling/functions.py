"""What a Python function is, as a digest: its code, and what it closes over."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from softswitch.support.compiling.programs import without_addresses


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
        digest.update(without_addresses(repr(value)).encode())
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
        return [without_addresses(repr(value)), value.state_dict()]
    own_call = type(value).__call__ if callable(value) else None
    called = [own_call] if isinstance(own_call, FunctionType) else []
    described = any("__repr__" in vars(kind) for kind in type(value).__mro__[:-1])
    return [*called, without_addresses(repr(value)) if described or not hasattr(value, "__dict__") else vars(value)]


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
    for name in sorted(names_in(function.__code__) & set(own)):
        value = own[name]
        if isinstance(value, FunctionType) and value.__module__ != function.__module__:
            continue  # a library's
        if not isinstance(value, ModuleType | type | BuiltinFunctionType):
            found.append((name, value))
    return found


def names_in(code: CodeType) -> set[str]:
    """The names that a function's code looks up, inner functions' and comprehensions' included."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)
