"""A run's verdict in words, for someone who reads nothing else."""

from __future__ import annotations

from typing import Any

from softswitch.runs.folder import Run
from softswitch.support.text import few_of

GOOD, UNSURE, BAD = "good", "unsure", "bad"


def verdict(run: Run) -> tuple[str, str]:
    """Whether it is good, unsure or bad, and why."""
    about, certificate = run.about, run.certificate
    code = about["status"]["code"]
    if code in ("diverged", "no-feasible-round"):
        ended = "The run diverged" if code == "diverged" else "No round was feasible"
        return BAD, f"{ended}: {about['status']['message']}."
    violating: list[str] = about["violating"]
    words = on_training(run)
    aim = about.get("aim")
    if aim is not None:
        bad = violating or (certificate or {}).get("verdict") == "violates"
        return (BAD if bad else GOOD if aim["answered"] else UNSURE), f"{aim['words']} {words}"
    if certificate is None:
        return (BAD if violating else UNSURE), f"{words} Nothing was held out, so nothing is certified."
    words = f"{words} {on_held_out(certificate)}"
    missing = about["clients"] - len(certificate["clients"])  # by an earlier version, which left them out
    if missing > 0:
        words += f" Of {missing} of {about['clients']} clients nothing is certified: no row of theirs is held out."
    if violating or certificate["verdict"] == "violates":
        return BAD, words
    sure = certificate["verdict"] == "meets" and code != "stopped" and missing <= 0
    return (GOOD if sure else UNSURE), words


def on_training(run: Run) -> str:
    """What the training rows say."""
    about = run.about
    clients, bound, violating = about["clients"], f"{about['tolerance']:g}", about["violating"]
    stopped = about["status"]["code"] == "stopped"
    begin = f"The run was stopped after {about['rounds']:,} rounds. " if stopped else ""
    if not violating:
        return f"{begin}On their training rows all {clients} clients meet the bound {bound}."
    are = "client is" if len(violating) == 1 else "clients are"
    which = f"{len(violating)} of {clients} {are} above the bound {bound}: {few_of(violating)}"
    return f"{begin}On their training rows {which}."


def on_held_out(certificate: dict[str, Any]) -> str:
    """What the held-out rows say."""
    every = certificate["clients"]
    sure = f"with {certificate['confidence']:.0%} confidence"
    sure = f"approximately, {sure}" if certificate["approximate"] else sure
    by_verdict: dict[str, list[str]] = {"meets": [], "violates": [], "cannot tell": [], "unknown": []}
    for one in every:
        by_verdict[one["verdict"]].append(str(one["client"]))
    if len(by_verdict["meets"]) == len(every):
        return f"On held-out rows every one of {len(every)} clients meets it, {sure}."
    said = [f"{len(by_verdict['meets'])} of {len(every)} clients meet it"]
    if by_verdict["violates"]:
        names = by_verdict["violates"]
        said.append(f"{len(names)} {'violates' if len(names) == 1 else 'violate'} it ({few_of(names)})")
    if by_verdict["cannot tell"]:
        names = by_verdict["cannot tell"]
        said.append(f"for {len(names)} there are too few rows to tell ({few_of(names)})")
    if by_verdict["unknown"]:
        names = by_verdict["unknown"]
        said.append(f"of {len(names)} nothing is known, since no row of theirs is held out ({few_of(names)})")
    return f"On held-out rows {', '.join(said)}, {sure}."
