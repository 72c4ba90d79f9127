"""Whether a proximal centre helps networks: the leaderboard's two, with what tuned the plain method best.

``python -m benchmarks.proximal [--seeds 3]``
"""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

from softswitch_experiments.leaderboard.cell import Cell, TaskUnits
from softswitch_experiments.leaderboard.methods import METHODS
from softswitch_experiments.leaderboard.tasks import MAIN, TASKS

TUNED = {"optimizer": "adam", "step": 1.06, "alpha": 4.08}
"""The best of the plain method's twelve settings, on both tasks."""
STRENGTHS, STAGES = (0.001, 0.01, 0.1, 1.0), (3, 10)


def main(seeds: int) -> None:
    """One line a setting: merit, F and G, means over seeds, by the better of the last stage's answer and the last."""
    methods = {method.name: method for method in METHODS}
    about = [{"strength": strength, "stages": stages} for strength in STRENGTHS for stages in STAGES]
    table = Table("task", "rounds", "ρ", "stages", "merit", "F", "G")
    for task in (task for task in TASKS if "network" in task.name):
        setup = task.setup(MAIN)
        for name, settings in (("softmax SGM", [{}]), ("softmax SGM, proximal", about)):
            cell = Cell(task, methods[name], setup, TaskUnits.measure(task, setup))
            rounds = cell.rounds(1.0, "passes")
            found = cell.run([TUNED | one for one in settings], list(range(seeds)), rounds)
            for one, runs in zip(settings, found, strict=True):
                merits = [run.merit for run in runs]
                means = [np.mean([getattr(run, part) for run in runs]) for part in ("objective", "constraint")]
                how = (f"{one['strength']:g}", str(one["stages"])) if one else ("none", "")
                spread = f"{np.mean(merits):.3f} ± {np.std(merits, ddof=1):.3f}"
                table.add_row(task.name, str(rounds), *how, spread, *(f"{mean:.3f}" for mean in means))
    Console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    main(parser.parse_args().seeds)
