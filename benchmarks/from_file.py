"""A large table from its file to a certified model: python -m benchmarks.from_file.

Settings that choose themselves, with the lower bound and the models beside the answer, against 1000 rounds of batches
of 32 with a step of 0.5: what ``softswitch train`` did before it chose.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

CLIENTS, FEATURES, AT_MOST = 50, 20, 0.5
FIXED = {
    'step_size = "auto"': "step_size = 0.5",
    'rounds = "auto"': "rounds = 1000",
    'batch_size = "auto"': "batch_size = 32",
}
SOFTSWITCH = [sys.executable, "-m", "softswitch"]


def write_table(file: Path, rows: int) -> None:
    """A table of clients of many sizes whose labels follow a logistic model, shifted from client to client."""
    generator = np.random.default_rng(0)
    client = generator.choice(CLIENTS, rows, p=generator.dirichlet(np.full(CLIENTS, 2.0)))
    x = generator.normal(size=(rows, FEATURES))
    odds = x @ (0.4 * generator.normal(size=FEATURES)) + 0.5 * generator.normal(size=CLIENTS)[client]
    table = pd.DataFrame(x.round(4), columns=[f"x{i}" for i in range(FEATURES)])
    table["label"] = (generator.random(rows) < 1 / (1 + np.exp(-odds))).astype(int)
    table["site"] = [f"site {i}" for i in client]
    table.to_csv(file, index=False)


def train(settings: Path) -> tuple[float, str]:
    """How many seconds ``softswitch train`` takes, and what it says of how good its answer is."""
    began = time.perf_counter()
    told = subprocess.run([*SOFTSWITCH, "train", settings], check=True, capture_output=True, text=True).stdout
    seconds = time.perf_counter() - began
    answer = next(line for line in told.splitlines() if line.startswith("the answer"))
    return seconds, f"F {answer.split()[2]}, G {answer.split()[4]}"


def main() -> None:
    """Print seconds and answers, in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=2)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        write_table(folder / "table.csv", asked.rows)
        chosen, fixed = folder / "chosen.toml", folder / "fixed.toml"
        about = ["table.csv", "--label", "label", "--client", "site", "--kind", "neyman-pearson"]
        subprocess.run([*SOFTSWITCH, "init", *about, "--bound", str(AT_MOST), "--out", chosen], check=True, cwd=folder)
        text = chosen.read_text(encoding="utf-8")
        for line, instead in FIXED.items():
            text = text.replace(line, instead, 1)
        fixed.write_text(text, encoding="utf-8")
        for _ in range(asked.repeats):
            (own, found), (before, found_before) = train(chosen), train(fixed)
            print(f"chosen {own:.1f} s ({found}); fixed {before:.1f} s ({found_before}): {own / before:.2f}×")


if __name__ == "__main__":
    main()
