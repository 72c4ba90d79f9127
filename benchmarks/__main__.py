"""Run all measurements: python -m benchmarks."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.neyman_pearson import against_torch
from benchmarks.startup import help_against_bare
from benchmarks.sweeps import sweep_against_singles

if __name__ == "__main__":
    against_torch()
    sweep_against_singles()
    help_against_bare()
    # In processes of their own: one is kept to a single core, of the other the peak of memory is measured.
    for name in ("safe_rl", "many_clients"):
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
