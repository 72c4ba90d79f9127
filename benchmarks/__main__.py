"""Run all measurements: python -m benchmarks."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.neyman_pearson import against_torch
from benchmarks.safe_rl import against_gymnasium
from benchmarks.sweeps import sweep_against_singles

if __name__ == "__main__":
    against_torch()
    sweep_against_singles()
    against_gymnasium()
    # In a process of its own: its peak of memory is what is measured.
    subprocess.run([sys.executable, "-m", "benchmarks.many_clients"], check=True)
