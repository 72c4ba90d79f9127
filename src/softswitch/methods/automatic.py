"""Automatic settings: a method whose step size, softmax sharpness and threshold are chosen during the run."""

from __future__ import annotations

from typing import Any

from softswitch.methods.base import Method
from softswitch.methods.softmax_sgm import SoftmaxSGM


class Automatic:
    """A method whose settings are chosen during the run, except those that are given.

    ``solve(problem, clients, tolerance=0.1)`` is short for ``solve(problem, clients, Automatic(tolerance=0.1))``. The
    run proceeds in restarts with a normalised Adam step at the server, and adapts the step size, the sharpness of the
    softmax and the threshold of the switch. The theorems do not cover it; ``result.method`` is the method that ran.

    Args:
        tolerance: ε >= 0, in units of g: the constraint is met if G(w) <= ε.
        method: Subclass of ``Method``. Default: ``SoftmaxSGM``.
        settings: Settings of the method that stay fixed, such as ``robust=2``. ``step_size`` is not accepted.
    """

    def __init__(self, tolerance: float, method: type[Method] = SoftmaxSGM, **settings: Any) -> None:
        if not (isinstance(method, type) and issubclass(method, Method)):
            raise TypeError(f"method must be a subclass of Method, such as SoftmaxSGM, but is {method!r}")
        if settings.get("step_size") is not None:
            raise ValueError(
                f"step_size must not be given to Automatic, but is {settings['step_size']!r}: "
                f"use {method.__name__}(...) for a method with given settings"
            )
        open_settings = {"step_size"} | ({"alpha"} if issubclass(method, SoftmaxSGM) else set())
        given: dict[str, Any] = {**dict.fromkeys(open_settings), **settings, "tolerance": tolerance}
        self.template: Method = method(**given)

    @property
    def tolerance(self) -> float:
        """Tolerance ε on the constraint, in units of g."""
        return self.template.tolerance

    def __repr__(self) -> str:
        return f"Automatic({self.template})"


def as_method(method: Method) -> Method | Automatic:
    """Return ``method`` itself if it has a step size, else an ``Automatic`` with its settings."""
    if method.step_size is not None:
        return method
    automatic = object.__new__(Automatic)
    automatic.template = method
    return automatic
