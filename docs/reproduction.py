"""Write docs/reproduction.md from the outputs of ``softswitch paper all``: python docs/reproduction.py results.

The page lists every statement and figure of the paper: its code, its command, and whether it held.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from itertools import groupby
from pathlib import Path

from softswitch_experiments.paper import EXPERIMENTS
from softswitch_experiments.paper.batch import record_durations
from softswitch_experiments.paper.inventory import ADDITIONAL_EXPERIMENTS, ITEMS, Item, Outputs, Verdict, combine
from softswitch_experiments.paper.outputs import read_outputs

DOCS = Path(__file__).parent
PAGE = DOCS / "reproduction.md"
TEMPLATE = DOCS / "templates" / "reproduction.md"


def render_page(outputs: Outputs, items: tuple[Item, ...] = ITEMS) -> str:
    """Return the page for the outputs of the experiments that were run."""
    verdicts = {item.label: item.verdict(outputs) for item in items}
    counts = Counter(verdicts.values())
    summary = "\n".join(f"| {verdict} | {counts[verdict]} |" for verdict in Verdict if counts[verdict])
    parts = [f"| verdict | items |\n|---|---|\n{summary}\n"]
    failed = [item for item in items if verdicts[item.label] in (Verdict.FAILED, Verdict.PARTLY)]
    if failed:
        lines = [
            f"- [{item.number}](#{anchor(item)}): {item.summary} — **{verdicts[item.label]}**"
            f"{_describe_best_reading(item, outputs)}"
            for item in failed
        ]
        parts.append("\n".join(["## What did not hold, or not all of it\n", *lines, ""]))
    for kind, members in groupby(items, key=lambda item: item.kind):
        parts.append(f"## {kind}\n")
        parts += [render_item(item, outputs) for item in members]
    additional = ", ".join(f"[{name}](gallery.md#{name})" for name in ADDITIONAL_EXPERIMENTS)
    parts.append(f"## Besides\n\nExperiments on questions that the paper does not raise: {additional}.\n")
    text = TEMPLATE.read_text(encoding="utf-8").replace("{{made with}}", _describe_run(outputs))
    return text.replace("{{items}}\n", "\n".join(parts))


def _describe_run(outputs: Outputs) -> str:
    run = f"This page is from {len(outputs)} of {len(EXPERIMENTS)} experiments"
    if any(output["quick"] for output in outputs.values()):
        return f"{run} in quick versions, whose claims need not hold."
    fewer = [f"{name} ({one['seeds']})" for name, one in outputs.items() if one["seeds"] < EXPERIMENTS[name].seeds]
    note = f" With fewer seeds than they now have, from an earlier run: {', '.join(fewer)}." if fewer else ""
    return f"{run}.{note}"


def anchor(item: Item) -> str:
    """Return the anchor of the item on the page."""
    return re.sub(r"[^a-z0-9]+", "-", item.label.lower())


def render_item(item: Item, outputs: Outputs) -> str:
    """Return the section of one item: statement, verdict, code, commands, tests and claims."""
    lines = [
        f"### {item.number} {{ #{anchor(item)} }}\n",
        f"{sentence(item.summary)} **{sentence(item.verdict(outputs))}**\n",
    ]
    if item.code:
        lines.append(f"- Where: {', '.join(map(_link, item.code))}")
    for name in dict.fromkeys(evidence.experiment for evidence in item.evidence):
        command = f"- Command: `softswitch paper {name}` ([figure](gallery.md#{name}))"
        lines.append(command if name in outputs else f"{command}, not run")
    if item.tests:
        lines.append(f"- Tests: {', '.join(f'`{test}`' for test in item.tests)}")
    if item.note:
        lines.append(f"- {item.note}")
    readings = item.claims_by_reading(outputs)
    if item.reading and not readings:
        lines.append(f"- Reading: {item.reading}")
    for reading, claims in readings.items():
        if reading:
            lines.append(f"- Reading: {reading} — **{combine([claim['held'] for claim in claims])}**")
        for claim in claims:
            verdict = Verdict.HELD if claim["held"] else Verdict.FAILED
            indent = "    " if reading else ""
            lines.append(f"{indent}- **{verdict}**: {claim['statement']} — {claim['measured']}")
    return "\n".join(lines) + "\n"


def _describe_best_reading(item: Item, outputs: Outputs) -> str:
    reading, verdict = item.best_reading(outputs)
    count = len(item.claims_by_reading(outputs))
    which = f"the strongest of {count} readings tried" if count > 1 else "the one reading tried"
    return f"; {which}: {reading or 'as the paper has it'} — **{verdict}**"


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return f"{text[0].upper()}{text[1:]}."


def _link(name: str) -> str:
    """Return the name, linked to the reference if a page there documents it."""
    pages = {
        documented: file.name
        for file in sorted((DOCS / "reference").glob("*.md"))
        for documented in re.findall(r"^::: (\S+)$", file.read_text(encoding="utf-8"), flags=re.M)
    }
    shown = f"`{name.removeprefix('softswitch.')}`"
    return f"[{shown}](reference/{pages[name]}#{name})" if name in pages else shown


def check(outputs: Outputs) -> None:
    """Raise if an experiment was not run in full, or if an item names claims that do not exist."""
    for name, experiment in EXPERIMENTS.items():
        if name not in outputs:
            raise ValueError(f"there are no outputs of {name}: run softswitch paper {name}")
        if outputs[name]["quick"] or outputs[name]["seeds"] != experiment.seeds:
            raise ValueError(f"the outputs of {name} are from a shorter version: run softswitch paper {name}")
    for item in ITEMS:
        for evidence in item.evidence:
            if not evidence.claims(outputs):
                raise ValueError(
                    f"{item.number} ({item.label}): no claim of {evidence.experiment} contains {evidence.about!r}"
                )


def main(results: Path) -> None:
    """Write the page, and update the table of durations."""
    outputs = {name: output for name in EXPERIMENTS if (output := read_outputs(results, name)) is not None}
    check(outputs)
    PAGE.write_text(render_page(outputs), encoding="utf-8")
    record_durations(outputs)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
