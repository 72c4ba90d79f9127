"""Regenerate every figure of the gallery and the page that shows them: python docs/gallery.py."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from softswitch.paper import EXPERIMENTS, Claim, Scale, Written, regenerate

DOCS = Path(__file__).parent
IMAGES = DOCS / "images" / "paper"
TEMPLATE = DOCS / "templates" / "gallery.md"


def page(written: list[Written], seeds: int, seconds: float) -> str:
    """The template with figures, commands and claims put in."""
    text = TEMPLATE.read_text(encoding="utf-8")
    text = text.replace("{{seconds}}", f"{seconds:.0f}").replace("{{seeds}}", str(seeds))
    for one in written:
        name = one.experiment.name
        claims = "\n".join(_line(claim) for claim in one.outcome.claims)
        shown = f"![{one.experiment.shows}](images/paper/{name}.png)\n\n    softswitch paper {name}\n\n{claims}"
        text = text.replace(f"{{{{{name}}}}}", shown)
    if "{{" in text:
        raise ValueError(f"{TEMPLATE.name} has a place for an experiment that there is not")
    return text


def _line(claim: Claim) -> str:
    return f"- **{'held' if claim.held else 'did not hold'}**: {claim.statement} — {claim.measured}"


def main() -> None:
    """Run all experiments, keep their pictures, write the page."""
    scale = Scale()
    began = time.perf_counter()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        written = list(regenerate(EXPERIMENTS.values(), scale, Path(folder)))
        for one in written:
            shutil.copy(one.files[0], IMAGES)
    (DOCS / "gallery.md").write_text(page(written, scale.seeds, time.perf_counter() - began), encoding="utf-8")


if __name__ == "__main__":
    main()
