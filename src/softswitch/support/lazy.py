"""Public names that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def on_first_use(door: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A module's ``__getattr__`` and ``__dir__``; ``places`` tells in which module of softswitch each name lives."""

    def look_up(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {door!r} has no attribute {name!r}")
        value = getattr(import_module(f"softswitch.{places[name]}"), name)
        setattr(sys.modules[door], name, value)
        return value

    return look_up, lambda: sorted(places)
