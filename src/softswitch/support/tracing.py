"""Digests of functions: of the JAX program that one compiles to, or of its Python code and the values it refers to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from softswitch.support.arrays import is_random_key
from softswitch.support.function_equality import referenced_names


def strip_addresses(text: str) -> str:
    """Remove memory addresses (" at 0x…") from a repr, so that it is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def program_digest(function: Callable[..., Any], *arguments: Any) -> str:
    """Return the SHA-256 digest of the jaxpr of ``function`` for arguments of these shapes, with closed-over arrays."""
    traced = jax.make_jaxpr(function)(*arguments)
    digest = hashlib.sha256(strip_addresses(str(traced)).encode())
    for constant in _constants(traced):
        array = np.asarray(jax.random.key_data(constant) if is_random_key(constant) else constant)
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _constants(program: Any) -> Iterator[Any]:
    """Yield the constant arrays and literals of a jaxpr and its nested jaxprs, in a fixed order."""
    if isinstance(program, ClosedJaxpr):
        yield from program.consts
        yield from _constants(program.jaxpr)
    elif isinstance(program, Jaxpr):
        for equation in program.eqns:
            yield from (variable.val for variable in equation.invars if isinstance(variable, Literal))
            yield from _constants(list(equation.params.values()))
    elif isinstance(program, list | tuple):
        for part in program:
            yield from _constants(part)
    elif isinstance(program, np.ndarray | jax.Array):
        yield program


def function_digest(*functions: Any) -> str:
    """Return the SHA-256 digest of functions: code, defaults, and values they refer to, not other modules' code."""
    digest = hashlib.sha256()
    seen: dict[int, Any] = {}
    for function in functions:
        _update(digest, function, seen)
    return digest.hexdigest()


def _update(digest: Any, value: Any, seen: dict[int, Any]) -> None:
    """Add a value and everything it refers to, once, to a digest; ``seen`` holds the objects added, by id."""
    digest.update(type(value).__qualname__.encode())
    if hasattr(value, "__array__") and not isinstance(value, type):
        array = _to_numpy(value)
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes())
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes | ModuleType | type):
        digest.update(strip_addresses(repr(value)).encode())
    elif id(value) not in seen:
        seen[id(value)] = value  # a reference, so that the id is not reused
        for part in _parts(value):
            if isinstance(part, CodeType):
                _update_code(digest, part)
            else:
                _update(digest, part, seen)


def _parts(value: Any) -> Iterable[Any]:
    """Return the parts of a value for its digest: code and references of a function, entries, or attributes."""
    if isinstance(value, FunctionType):
        return [value.__code__, value.__defaults__, value.__kwdefaults__, *_references(value)]
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
        return [getattr(value, field.name) for field in fields(value)]
    if hasattr(value, "state_dict"):  # a PyTorch module
        return [strip_addresses(repr(value)), value.state_dict()]
    call = type(value).__call__ if callable(value) else None
    calls = [call] if isinstance(call, FunctionType) else []
    has_repr = any("__repr__" in vars(cls) for cls in type(value).__mro__[:-1])
    return [*calls, strip_addresses(repr(value)) if has_repr or not hasattr(value, "__dict__") else vars(value)]


def _to_numpy(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # NumPy has no such dtype
            value = value.float()
    return np.asarray(value)


def _update_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _update_code(digest, constant)
        elif isinstance(constant, frozenset):
            digest.update(repr(sorted(map(repr, constant))).encode())
        elif not isinstance(constant, str) or constant is not code.co_consts[0]:  # not a docstring
            digest.update(repr(constant).encode())


def _references(function: FunctionType) -> Iterator[Any]:
    """Yield the closed-over values of a function, and (name, value) of the globals that it refers to."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the cell is empty
            continue
    for name in sorted(referenced_names(function.__code__) & set(function.__globals__)):
        value = function.__globals__[name]
        if isinstance(value, FunctionType) and value.__module__ != function.__module__:
            continue
        if not isinstance(value, ModuleType | type | BuiltinFunctionType):
            yield (name, value)
