"""Automatic settings: a method whose settings are chosen during the run, and the choice between methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softswitch.methods.base import Method
from softswitch.methods.softmax_sgm import SoftmaxSGM
from softswitch.methods.sqp import SQP

CRITERIA = (None, "max", "pooled")  # criteria that first- and second-order methods have in common


@dataclass(frozen=True, kw_only=True)
class OpenMethod(SoftmaxSGM):
    """The method of a run that chooses between methods; for first-order engines a ``SoftmaxSGM`` of open step size."""

    @property
    def second_order(self) -> SQP:
        """``SQP`` with the same tolerance."""
        return SQP(tolerance=self.tolerance, criterion=self.criterion)


class Automatic:
    """A method whose settings are chosen during the run, except those that are given.

    ``solve(problem, clients, tolerance=0.1)`` is short for ``solve(problem, clients, Automatic(tolerance=0.1))``.
    Without a class of a method and without settings the method is chosen too: ``SQP`` for small smooth models with all
    rows at hand, else ``SoftmaxSGM``. A first-order run proceeds in restarts with a normalised Adam step at the server,
    and adapts the step size, the sharpness of the softmax and the threshold of the switch. The theorems do not cover
    it; ``result.method`` is the method that ran, and ``result.auto_settings`` gives the reason.

    Args:
        tolerance: ε >= 0, in units of g: the constraint is met if G(w) <= ε.
        method: Class of a first-order method, such as ``SoftmaxSGM``. Default: chosen.
        settings: Settings of the method that stay fixed, such as ``robust=2``. ``step_size`` is not accepted.
    """

    def __init__(self, tolerance: float, method: type[Method] | None = None, **settings: Any) -> None:
        is_open = method is None and settings.keys() <= {"criterion"}
        method = OpenMethod if is_open and settings.get("criterion") in CRITERIA else method or SoftmaxSGM
        if not (isinstance(method, type) and issubclass(method, Method)) or issubclass(method, SQP):
            raise TypeError(f"method must be a class of a first-order method, such as SoftmaxSGM, but is {method!r}")
        if settings.get("step_size") is not None:
            advice = f"use {method.__name__}(...) for a method with given settings"
            raise ValueError(f"step_size must not be given to Automatic, but is {settings['step_size']!r}: {advice}")
        open_settings = {"step_size"} | ({"alpha"} if issubclass(method, SoftmaxSGM) else set())
        given: dict[str, Any] = {**dict.fromkeys(open_settings), **settings, "tolerance": tolerance}
        self.template: Method = method(**given)

    @property
    def tolerance(self) -> float:
        """Tolerance ε on the constraint, in units of g."""
        return self.template.tolerance

    def __repr__(self) -> str:
        return f"Automatic({self.tolerance if isinstance(self.template, OpenMethod) else self.template})"


def as_method(method: Method) -> Method | Automatic:
    """Return ``method`` itself if it has a step size, else an ``Automatic`` with its settings."""
    if method.step_size is not None:
        return method
    automatic = object.__new__(Automatic)
    automatic.template = method
    return automatic


def to_first_order(method: Method) -> Method:
    """Return ``SoftmaxSGM`` with automatic settings for an ``OpenMethod``, and other methods as they are."""
    if not isinstance(method, OpenMethod):
        return method
    return SoftmaxSGM(alpha=None, step_size=None, tolerance=method.tolerance, criterion=method.criterion)
