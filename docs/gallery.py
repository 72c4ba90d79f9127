"""Write docs/gallery.md from what ``softswitch paper all --out results`` wrote: python docs/gallery.py results."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from softswitch.paper import EXPERIMENTS

DOCS = Path(__file__).parent
IMAGES = DOCS / "images" / "paper"
TEMPLATE = DOCS / "templates" / "gallery.md"


def page(told: dict[str, dict]) -> str:
    """The template with figures, commands and claims put in."""
    text = TEMPLATE.read_text(encoding="utf-8")
    for kind in ("np", "fair", "safe-rl"):
        own = [one["seconds"] for name, one in told.items() if _kind(name) == kind]
        text = text.replace(f"{{{{{kind} seconds}}}}", f"{sum(own):.0f} s")
    for name, one in told.items():
        claims = "\n".join(
            f"- **{'held' if claim['held'] else 'did not hold'}**: {claim['statement']} — {claim['measured']}"
            for claim in one["claims"]
        )
        shown = f"![{one['shows']}](images/paper/{name}.png)\n\n    softswitch paper {name}\n\n{claims}"
        text = text.replace(f"{{{{{name}}}}}", shown)
    if "{{" in text:
        raise ValueError(f"{TEMPLATE.name} has a place that nothing fills: {text[text.index('{{') :][:40]}")
    return text


def _kind(name: str) -> str:
    """Which part of the page an experiment belongs to; all that is not named after its task is Neyman–Pearson's."""
    if name == "alpha-scale":
        return "all"
    return next((kind for kind in ("fair", "safe-rl") if name.startswith(kind)), "np")


def main(results: Path) -> None:
    """Keep the pictures, write the page."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    told = {}
    for name in EXPERIMENTS:
        told[name] = json.loads((results / name / "claims.json").read_text(encoding="utf-8"))
        if told[name]["quick"] or told[name]["seeds"] != EXPERIMENTS[name].seeds:
            raise ValueError(f"{results / name} holds a shorter version; the gallery shows full ones")
        shutil.copy(results / name / f"{name}.png", IMAGES)
    (DOCS / "gallery.md").write_text(page(told), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
