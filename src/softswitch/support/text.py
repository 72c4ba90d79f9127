"""Tables and numbers as text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console, RenderableType


def as_text(*parts: RenderableType, width: int = 120) -> str:
    """What the parts look like printed, one below the other."""
    console = Console(width=width)
    with console.capture() as capture:
        for part in parts:
            console.print(part, highlight=False)
    return capture.get()


def few_of(words: Sequence[str], most: int = 5) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def mean_and_spread(values: Sequence[float] | np.ndarray) -> str:
    """Mean ± standard deviation, for a table."""
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"
