"""A small run's folder with all files that a run's folder can have."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd

from softswitch.results.certificate import Outcome
from softswitch.results.folder import CLIENTS, write_frontier
from softswitch.results.frontier import Frontier, FrontierPoint
from softswitch.support.text import escape_cell
from softswitch.tables import training

SETTINGS = """[data]
file = "cases.csv"
label = "y"
client = "ward"
[task]
bound = 0.5
[method]
step_size = 0.5
[run]
rounds = 12
aim = "bare"
"""


def table(rows=240, wards=4):
    generator = np.random.default_rng(0)
    cases = pd.DataFrame(generator.normal(size=(rows, 2)).round(3), columns=["a", "b"])
    cases["kind"] = generator.choice(["x", "z"], rows)
    cases["seen"] = pd.date_range("2020-01-01", periods=rows).strftime("%Y-%m-%d")
    cases["y"] = (cases["a"] + 0.5 * generator.normal(size=rows) > 0).astype(int)
    cases["ward"] = [f"ward {i % wards}" for i in range(rows)]
    return cases


def small_run(home: Path) -> Path:
    """Train briefly and return the folder, which has a certificate, checkpoints and a frontier."""
    table().to_csv(home / "cases.csv", index=False)
    (home / "small.toml").write_text(SETTINGS, encoding="utf-8")
    folder = training.train(home / "small.toml", progress=False).folder
    numbers = dict.fromkeys(("objective", "other_objective"), 0.3)
    numbers["constraint"] = 0.1
    points = [
        FrontierPoint(0.4, Outcome.CERTIFIED, **numbers, measures={"accuracy, all rows": 0.9}, model="the last"),
        FrontierPoint(0.2, Outcome.VIOLATES, **numbers, measures={"accuracy, all rows": math.nan}, model="the last"),
    ]
    frontier = Frontier(tuple(points), 0.95, 4)
    write_frontier(folder, frontier, {})
    return folder


def rename_clients(folder: Path, names: list[str]) -> None:
    """Rename a run's clients in all of its files."""
    lines = (folder / CLIENTS).read_text(encoding="utf-8").splitlines()
    old = [line.partition(",")[0] for line in lines[1:]]
    new = dict(zip(old, names, strict=True))
    cells = ['"' + escape_cell(new[line.partition(",")[0]]).replace('"', '""') + '"' for line in lines[1:]]
    new_lines = [lines[0], *(f"{cell},{line.partition(',')[2]}" for cell, line in zip(cells, lines[1:], strict=True))]
    (folder / CLIENTS).write_text("\n".join(new_lines) + "\n", encoding="utf-8")
    for file in ("run.json", "certificate.json"):
        content = json.loads((folder / file).read_text(encoding="utf-8"))
        if file == "run.json":
            content["violating"] = names
        for client in content["clients"] if file == "certificate.json" else ():
            client["client"] = new[client["client"]]
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
