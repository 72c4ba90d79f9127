"""The licences of all that is installed, as packages themselves tell them."""

from __future__ import annotations

import json
import re
from pathlib import Path

from release.environments import Environment, Failed

ALLOWED = (
    *(
        "apache",
        "mit",
        "bsd",
        "isc",
        "psf",
        "python software foundation",
        "python-2.0",
        "mpl",
        "mozilla public",
        "hpnd",
    ),
    *("unlicense", "zlib", "0bsd", "cc0", "public domain", "matplotlib license"),
)
"""Licences, by how they begin or what is in their names, that ask for no more than to be named with the package."""
REFUSED = re.compile(r"\b(agpl|(?<!l)gpl(?!.*exception)|sspl|busl|proprietary|commercial)", re.IGNORECASE)
OWN = ("softswitch", "pip", "setuptools")
ASK = """
import json
from importlib.metadata import distributions
found = {}
for one in distributions():
    about = one.metadata
    classifiers = [c.split(" :: ")[-1] for c in about.get_all("Classifier", ()) if c.startswith("License ::")]
    text = (about.get("License") or "").strip()
    files = sorted(f.name for f in (one.files or ()) if f.name.upper().startswith(("LICEN", "COPYING")))
    said = about.get("License-Expression") or ""
    found[about["Name"]] = [one.version, said, classifiers, text.splitlines()[:3], files]
print(json.dumps(found))
"""


def list_licences(environment: Environment, file: Path) -> str:
    """Write name, version and licence of every package; raise where one has none known, or one that is not allowed."""
    told = json.loads(environment.run("python", "-c", ASK))
    lines, wrong = [], []
    for name, (version, expression, classifiers, text, files) in sorted(told.items(), key=lambda item: item[0].lower()):
        if name.lower() in OWN:
            continue
        licence = expression or "; ".join(classifiers) or (text[0] if text else "")
        lines.append(f"{name} {version}: {licence or 'unknown'} ({', '.join(files) or 'no file'})")
        if not is_allowed(licence):
            wrong.append(lines[-1])
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if wrong:
        raise Failed("licences that are unknown or not allowed:\n" + "\n".join(wrong))
    return f"{len(lines)} packages with licences that are allowed: {file.name}"


def is_allowed(licence: str) -> bool:
    """Whether a licence is known, and on the list: of several joined by AND all of them, else one."""
    parts = [re.split(r"\bOR\b|;", part) for part in re.split(r"\bAND\b", licence)]
    return bool(licence) and all(
        any(_known(choice) and not REFUSED.search(choice) for choice in choices) for choices in parts
    )


def _known(licence: str) -> bool:
    bare = licence.strip(" ()\"'").lower()
    return any(bare.startswith(word) or f" {word}" in f" {bare}" for word in ALLOWED)
