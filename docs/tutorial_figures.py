"""Make the tutorial's pictures, of the reports that its own commands write: python docs/tutorial_figures.py (a minute).

It needs Chromium, as the tests that look at the report do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from softswitch.results.folder import find_runs
from softswitch.results.report.page import write_report

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
NAMES = ("tutorial-not-certified.png", "tutorial-certified.png")
WIDTH = 1300


def follow(folder: Path) -> None:
    """Run the tutorial's shell blocks in a folder, as a reader would."""
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    script = "set -euo pipefail\n" + "\n".join(re.findall(r"```sh\n(.*?)```", page, flags=re.DOTALL))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", script], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def picture(report: Path, out: Path) -> None:
    """A report from its top down to the chart of every client."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"]) as chromium,
    ):
        page = chromium.new_page(viewport={"width": WIDTH, "height": 800})
        page.goto(report.resolve().as_uri())
        below = page.get_by_text("Is it of any use?").first.bounding_box()
        assert below is not None
        page.screenshot(path=out, clip={"x": 0, "y": 0, "width": WIDTH, "height": below["y"] - 10}, full_page=True)
    print(out)


def main() -> None:
    """Follow the tutorial, and take a picture of each run's report."""
    with tempfile.TemporaryDirectory() as folder:
        follow(Path(folder))
        for run, name in zip(find_runs(Path(folder) / "runs"), NAMES, strict=True):
            report = Path(folder) / f"{name}.html"
            write_report([run.folder], report)
            picture(report, IMAGES / name)


if __name__ == "__main__":
    main()
