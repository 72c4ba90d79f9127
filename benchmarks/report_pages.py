"""The report's page for few, many and very many clients: how large and how high it is, and what it looks like.

python -m benchmarks.report_pages FOLDER            # trains, writes reports, tells size and height
python -m benchmarks.report_pages FOLDER --pictures # and takes pictures, wide and narrow, light and dark
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from softswitch.results.report.page import write_report
from softswitch.tables import training

SIZES = {4: (900, 0.05, "softmax"), 80: (900, 0.05, "average"), 10_000: (60, 0.3, "average")}
"""By how many clients: rows a client, the bound, and the method. One that minds the mean client lets others violate."""
SETTINGS = """
[data]
file = "{clients}.csv"
label = "diagnosis"
client = "hospital"
positive = "malignant"
[task]
kind = "miss-rate"
bound = {bound}
[method]
name = "{method}"
[run]
aim = "{aim}"
rounds = 400
"""
WIDTHS = (1400, 390)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def table(clients: int, rows: int) -> pd.DataFrame:
    """Cases at so many hospitals, of different sizes; at some the label is harder to tell."""
    draw = np.random.default_rng(clients)
    sizes = np.maximum(12, draw.poisson(rows * draw.uniform(0.3, 1.7, clients)))
    owner = np.repeat(np.arange(clients), sizes)
    y = draw.random(len(owner)) < 0.4
    apart = np.where(draw.random(clients) < 0.8, 5.0, 2.5)[owner]
    x = draw.normal(size=(len(owner), 3)) + np.outer(np.where(y, 0.5, -0.5) * apart, [1, 0.5, 0])
    names = [f"hospital {i:05d}" for i in range(clients)] if clients > 4 else ["north", "south", "west", "other"]
    found = pd.DataFrame(x, columns=["size", "texture", "age"])
    return found.assign(diagnosis=np.where(y, "malignant", "benign"), hospital=np.array(names)[owner])


def made(home: Path, clients: int) -> Path:
    """A run with so many clients; one that is there already is used again."""
    found = sorted((home / "runs").glob(f"{clients}-*/params.safetensors"))
    if found:
        return found[-1].parent
    rows, bound, method = SIZES[clients]
    table(clients, rows).to_csv(home / f"{clients}.csv", index=False)
    told = SETTINGS.format(
        clients=clients, aim="certified" if method == "softmax" else "bare", bound=bound, method=method
    )
    (home / f"{clients}.toml").write_text(told, encoding="utf-8")
    return training.train(home / f"{clients}.toml").folder


def look(pages: dict[int, Path], home: Path, pictures: bool) -> None:
    """Each page's height in a browser; and pictures of it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        for clients, file in pages.items():
            for width in WIDTHS:
                for scheme in SCHEMES if pictures else SCHEMES[:1]:
                    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
                    page.goto(file.resolve().as_uri())
                    high = page.evaluate("document.documentElement.scrollHeight")
                    wide = page.evaluate("document.documentElement.scrollWidth")
                    print(f"{clients:>6,} clients at {width} px, {scheme}: {wide} wide, {high:,} high")
                    if pictures:
                        name = f"{clients}-{width}-{scheme}"
                        page.screenshot(path=home / f"{name}.png")
                        page.screenshot(path=home / f"{name}-whole.png", full_page=True)
                    page.close()
        browser.close()


def main() -> None:
    """Make, measure, look."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", action="store_true")
    parser.add_argument("--clients", type=int, nargs="*", default=list(SIZES))
    asked = parser.parse_args()
    home: Path = asked.folder
    home.mkdir(parents=True, exist_ok=True)
    pages = {}
    for clients in asked.clients:
        run = made(home, clients)
        began = time.perf_counter()
        pages[clients] = write_report([run])
        took = time.perf_counter() - began
        print(f"{clients:>6,} clients: {pages[clients].stat().st_size / 1e6:.2f} MB, written in {took:.1f} s")
    look(pages, home, asked.pictures)


if __name__ == "__main__":
    main()
