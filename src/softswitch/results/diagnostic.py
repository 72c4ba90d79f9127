"""Something that looks wrong with a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostic:
    """Something that looks wrong.

    Attributes:
        illness: its short name.
        seen: what in the run points to it.
        change: what to try.
    """

    code: str
    seen: str
    change: str

    def __str__(self) -> str:
        return f"{self.code}: {self.seen}. {self.change}."
