"""Checks of options that cannot be combined with privacy."""

from __future__ import annotations

from typing import Any

from softswitch.data.client_data import ClientData
from softswitch.oracles.client_shifts import RegretObjective
from softswitch.oracles.options import Sampling
from softswitch.privacy.settings import RecordPrivacy
from softswitch.problem.problem import Problem
from softswitch.support import checks

_CLIENT = "PrivateClient(...) of softswitch.flower"


def refuse_uncounted(problem: Problem, options: Any) -> None:
    """Raise ValueError if one of the ``RunOptions`` is set that reads rows outside of the privacy accounting."""
    sampling: Sampling = options.sampling or Sampling()
    size, value_size = sampling.batch_size, sampling.value_batch_size
    given = {
        "held_out": options.logging.held_out,
        "warm_start": options.warm_start,
        "lower_bound": options.output.lower_bound,
        "regret": isinstance(problem.objective, RegretObjective),
        "devices": options.compute.devices,
        "client_batch_size": options.compute.client_batch_size,
        "seconds": options.seconds,
        "eval_every": options.logging.eval_every,
        "batch_size": None if size == "auto" else size,
        "value_batch_size": None if value_size in ("same", "auto") else f"{value_size}",
        "replace": sampling.replace,
    }
    for name, value in given.items():
        if value is not None and value is not False and value != 0:
            reason = "a private run computes on one device, with the rows that its rate draws and nothing else"
            raise ValueError(f"{name} must keep its default with privacy, but is {value!r}: {reason}")


def check_private(clients: Any, privacy: Any, engine: str) -> None:
    """Raise unless ``privacy`` is a ``RecordPrivacy``, ``clients`` a ``ClientData`` and ``engine`` "compiled"."""
    checks.check_instance("privacy", privacy, RecordPrivacy)
    if not isinstance(clients, ClientData):
        given = f"{type(clients).__name__}: rows must be in memory"
        raise ValueError(f"clients must be a ClientData with privacy, but are {given}; use a subset, or {_CLIENT}")
    if engine != "compiled":
        raise ValueError(f"engine must be 'compiled' with privacy, but is {engine!r}; over Flower use {_CLIENT}")
