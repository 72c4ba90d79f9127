"""The type checker of array shapes."""

from beartype import beartype


def check_outer(function):
    """Check the types of a function or a method. An inner function, which is defined on every call, is not checked."""
    return function if "<locals>" in function.__qualname__ else beartype(function)
