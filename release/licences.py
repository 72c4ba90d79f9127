"""Licences of all installed packages, from their metadata."""

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
"""Start of, or words in, the names of permissive licences."""
REFUSED = re.compile(r"\b(agpl|(?<!l)gpl(?!.*exception)|sspl|busl|proprietary|commercial)", re.IGNORECASE)
OWN = ("softswitch", "pip", "setuptools")
QUERY = """
import json
from importlib.metadata import distributions
licences = {}
for one in distributions():
    about = one.metadata
    classifiers = [c.split(" :: ")[-1] for c in about.get_all("Classifier", ()) if c.startswith("License ::")]
    text = (about.get("License") or "").strip()
    files = sorted(f.name for f in (one.files or ()) if f.name.upper().startswith(("LICEN", "COPYING")))
    expression = about.get("License-Expression") or ""
    licences[about["Name"]] = [one.version, expression, classifiers, text.splitlines()[:3], files]
print(json.dumps(licences))
"""


def list_licences(environment: Environment, file: Path) -> str:
    """Write name, version and licence of every package; raise if one is unknown or not allowed."""
    licences = json.loads(environment.run("python", "-c", QUERY))
    lines, wrong = [], []
    for name, (version, expression, classifiers, text, files) in sorted(
        licences.items(), key=lambda item: item[0].lower()
    ):
        if name.lower() in OWN:
            continue
        licence = expression or "; ".join(classifiers) or (text[0] if text else "")
        lines.append(f"{name} {version}: {licence or 'unknown'} ({', '.join(files) or 'no file'})")
        if not is_allowed(licence):
            wrong.append(lines[-1])
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if wrong:
        raise Failed("unknown or rejected licences:\n" + "\n".join(wrong))
    return f"{len(lines)} packages with permissive licences: {file.name}"


def is_allowed(licence: str) -> bool:
    """Return whether a licence is permissive: all parts joined by AND, or one of the alternatives."""
    parts = [re.split(r"\bOR\b|;", part) for part in re.split(r"\bAND\b", licence)]
    return bool(licence) and all(
        any(_is_permissive(choice) and not REFUSED.search(choice) for choice in choices) for choices in parts
    )


def _is_permissive(licence: str) -> bool:
    bare = licence.strip(" ()\"'").lower()
    return any(bare.startswith(word) or f" {word}" in f" {bare}" for word in ALLOWED)
