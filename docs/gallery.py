"""Write docs/gallery.md from the outputs of ``softswitch paper all --out results``: python docs/gallery.py results."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from softswitch_experiments.paper import EXPERIMENTS

DOCS = Path(__file__).parent
IMAGES = DOCS / "images" / "paper"
TEMPLATE = DOCS / "templates" / "gallery.md"
TITLES = {
    "np-comparison": "Against the penalty method and primal-dual",
    "np-tuning": "How wide the good settings are",
    "np-readings": "Every method tuned, all clients a round",
    "np-readings-partial": "Every method tuned, half of the clients a round",
    "alpha-sensitivity": "From the mean to the maximum",
    "local-steps": "More local steps",
    "local-steps-readings": "More local steps, under four readings",
    "participation": "Fewer clients a round",
    "sgm-comparison": "What the average hides",
    "np-noniid": "Clients that differ",
    "error-budget": "Measured errors and the theory's",
    "alpha-tradeoff": "Where iterates settle, in two clients",
    "fair-comparison": "Parity: against the penalty method and primal-dual",
    "fair-tuning": "Parity: how wide the good settings are",
    "fair-readings": "Parity: every method tuned",
    "fair-passes": "Parity: local epochs as passes over the rows",
    "fair-criterion": "Parity: four criteria for the switch",
    "fair-alpha": "Parity: from the mean to the maximum",
    "fair-optimizer": "Parity: Adam and plain gradient steps",
    "fair-noniid": "Parity: every occupation a client",
    "fair-noniid-readings": "Parity by occupation: more rows a report",
    "fair-frontier": "Parity: accuracy against the gap, compared with Fairlearn",
    "safe-rl": "Carts: fewer rounds above the budget",
    "safe-rl-alpha": "Carts: what α costs",
    "safe-rl-clients": "Carts: planet by planet",
    "alpha-scale": "One α for all tasks?",
}
"""Heading of each experiment, which is also the caption of its thumbnail."""


def render_page(outputs: dict[str, dict]) -> str:
    """Return the template with figures, commands and claims filled in."""
    text = TEMPLATE.read_text(encoding="utf-8")
    text = text.replace("{{times}}", render_durations(outputs)).replace("{{contents}}", render_contents(text, outputs))
    for name, output in outputs.items():
        claims = "\n".join(
            f"- **{'held' if claim['held'] else 'did not hold'}**: {claim['statement']} — {claim['measured']}"
            for claim in output["claims"]
        )
        figure = f"![{output['summary']}](images/paper/{name}.png)"
        seeds = _describe_seeds(name, output["seeds"])
        section = f"{figure}\n\n    softswitch paper {name}\n\n{seeds}\n\n{claims}"
        text = text.replace(f"{{{{{name}}}}}", section)
        heading = f"\n### {TITLES[name]} {{ #{name} }}\n\n`{name}`: {output['summary']}.\n"
        text = text.replace(f"\n## {name}\n", heading)
    text = re.sub(r"\n# (?=\S)", "\n## ", text)  # the table of contents needs a single heading of the first level
    if "{{" in text:
        raise ValueError(f"{TEMPLATE.name} has a placeholder without outputs: {text[text.index('{{') :][:40]}")
    return text


def render_contents(template: str, outputs: dict[str, dict]) -> str:
    """Return thumbnails that link to the sections, in the order and under the headings of the template."""
    parts: list[str] = []
    for level, heading in re.findall(r"^(#{1,2}) (.+)$", template, flags=re.MULTILINE):
        if level == "#":
            parts.append(f'</div>\n\n**{heading}**\n\n<div class="grid cards thumbnails" markdown>\n')
        elif heading in outputs:
            claims = outputs[heading]["claims"]
            held = sum(claim["held"] for claim in claims)
            picture = f"[![{outputs[heading]['summary']}](images/paper/{heading}.png){{ loading=lazy }}](#{heading})"
            caption = f"[{TITLES[heading]}](#{heading})  \n    {held} of {len(claims)} claims held"
            parts.append(f"- {picture}\n\n    {caption}\n")
    text = "\n".join([*parts, "</div>"]).removeprefix("</div>\n\n")
    return re.sub(r"\*\*[^*]+\*\*\n\n<div[^>]*>\n\n</div>\n*", "", text)  # headings without experiments


def _describe_seeds(name: str, seeds: int) -> str:
    now = EXPERIMENTS[name].seeds
    return f"{seeds} seeds." if seeds == now else f"{seeds} seeds, from an earlier run; the command now takes {now}."


def render_durations(outputs: dict[str, dict]) -> str:
    """Return a table of the seconds of each experiment, longest first, and their sum."""
    longest = sorted(outputs, key=lambda name: -outputs[name]["seconds"])
    rows = [f"| [{name}](#{name}) | {outputs[name]['seconds']:.0f} |" for name in longest]
    total = sum(output["seconds"] for output in outputs.values())
    return "\n".join(["| experiment | seconds |", "|---|---|", *rows, f"| all | {total:.0f} |"])


def main(results: Path) -> None:
    """Copy the figures and write the page."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    outputs = {}
    for name in EXPERIMENTS:
        outputs[name] = json.loads((results / name / "claims.json").read_text(encoding="utf-8"))
        if outputs[name]["quick"] or outputs[name]["seeds"] != EXPERIMENTS[name].seeds:
            raise ValueError(f"{results / name} is from a shorter version: run softswitch paper {name}")
        shutil.copy(results / name / f"{name}.png", IMAGES)
    (DOCS / "gallery.md").write_text(render_page(outputs), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
