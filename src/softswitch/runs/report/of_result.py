"""report(): the report of a result that has no folder."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from softswitch.results.certificate import Certificate
from softswitch.results.result import Result
from softswitch.runs.folder import write_result
from softswitch.runs.report.page import write_report
from softswitch.support import checks


def report(
    result: Result,
    out: str | Path = "report.html",
    *,
    certificate: Certificate | None = None,
    rows: Sequence[int] | None = None,
    title: str | None = None,
) -> Path:
    """Write the report of a run as one HTML file: verdict, every client, the rounds, what looks wrong.

    Args:
        result: of ``solve``, ``solve_torch``, ``solve_federation``, whichever engine.
        out: the HTML file to write.
        certificate: what ``certify`` or ``certify_torch`` said of it, if anything.
        rows: how many rows each client trained on, in the order of ``result.names``; to be shown.
        title: what the report is called; by default the file's name.

    Returns:
        The file.
    """
    checks.expect("result", result, Result)
    if certificate is not None:
        checks.expect("certificate", certificate, Certificate)
    if rows is not None and len(rows) != len(result.names):
        raise ValueError(f"rows must have one number for each of {len(result.names)} clients, but has {len(rows)}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / (title or Path(out).stem).replace("/", " ")
        columns = None if rows is None else {"rows": list(rows)}
        write_result(folder, result, clients=columns, certificate=certificate)
        return write_report([folder], out)
