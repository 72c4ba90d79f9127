"""How many threads to compute with."""

from __future__ import annotations

import os


def threads() -> int:
    """As many as XLA has in this process: ``NPROC`` where it is set, and else one a core."""
    told = os.environ.get("NPROC", "")
    return int(told) if told.isdigit() and int(told) else os.cpu_count() or 1
