"""Output on a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text


class SafeConsole(Console):
    """A console on which names and texts from files cannot control the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return the styled text, with control characters as visible escape sequences."""
        return super().render_str(show_control_characters(text), **options)


def show_control_characters(text: str) -> str:
    """Return text in which control characters, other than line breaks and tabs, are visible escape sequences."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def plain_cell(text: str) -> str:
    """Return text for a cell of a rich table, on one line and without markup, so that it cannot pass for other rows."""
    return escape(" ".join(text.split()))


def say(text: str, *, style: str | None = None, wrap: bool = False, error: bool = False) -> None:
    """Print plain text, to stderr if ``error``. Lines are broken only with ``wrap``, so that paths can be copied."""
    SafeConsole(stderr=error).print(text, style=style, highlight=False, markup=False, soft_wrap=not wrap)
