"""What a Python function is, as a digest: its code, and what it closes over."""

from __future__ import annotations

import hashlib
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from softswitch.support.programs import without_addresses


def function_digest(*functions: Any) -> str:
    """A digest of functions: their code, defaults, and the values that they take from around them.

    What those refer to in turn is followed through functions and methods; an array counts with its numbers, anything
    else with its repr. A change that is only in a library's code is not seen.
    """
    digest = hashlib.sha256()
    seen: set[int] = set()
    for function in functions:
        _add(digest, function, seen)
    return digest.hexdigest()


def _add(digest: Any, value: Any, seen: set[int]) -> None:
    if isinstance(value, MethodType):
        _add(digest, value.__func__, seen)
        value = value.__self__
    if isinstance(value, FunctionType):
        if id(value) in seen:
            return
        seen.add(id(value))
        _add_code(digest, value.__code__)
        for part in (value.__defaults__, value.__kwdefaults__, *_surroundings(value)):
            _add(digest, part, seen)
    elif isinstance(value, list | tuple):
        for part in value:
            _add(digest, part, seen)
    elif isinstance(value, dict):
        for name, part in value.items():
            digest.update(repr(name).encode())
            _add(digest, part, seen)
    elif hasattr(value, "__array__") and hasattr(value, "dtype"):
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    else:
        digest.update(without_addresses(repr(value)).encode())
        if callable(value) and isinstance(type(value).__call__, FunctionType):  # an object called like a function
            _add(digest, type(value).__call__, seen)


def _add_code(digest: Any, code: CodeType) -> None:
    digest.update(code.co_code)
    digest.update(repr(code.co_names).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _add_code(digest, constant)
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
    for name in sorted(set(function.__code__.co_names) & set(own)):
        value = own[name]
        helper = isinstance(value, FunctionType) and value.__module__ == function.__module__
        if helper or isinstance(value, int | float | str | list | tuple | dict) or hasattr(value, "__array__"):
            found.append((name, value))
    return found
