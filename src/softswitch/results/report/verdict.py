"""A run's verdict in words, for someone who reads nothing else."""

from __future__ import annotations

from typing import NamedTuple

from softswitch.results.folder import Run
from softswitch.results.report.client_states import ClientStanding, ClientVerdict, standings, worst_first
from softswitch.support.text import few_of, share

GOOD, UNSURE, BAD = "good", "unsure", "bad"
MARKS = {GOOD: "✔", UNSURE: "?", BAD: "✘"}
FEW = 3
"""So many clients are named."""


class InShort(NamedTuple):
    """What a run came to.

    Attributes:
        level: good, unsure or bad.
        headline: in two or three words.
        counts: how many clients meet, violate, and are undecided.
        words: more of it: on which rows, with what confidence.
    """

    level: str
    headline: str
    counts: str
    words: str


def verdict(run: Run, found: list[ClientStanding] | None = None) -> InShort:
    """Whether it is good, unsure or bad, and why; ``found``: how its clients stand, where that is known already."""
    found = standings(run) if found is None else found
    about, certificate = run.about, run.certificate
    code, violating = about["status"]["code"], about["violating"]
    if code == "diverged":
        return InShort(BAD, "The run diverged", "", f"{about['status']['message'].capitalize()}.")
    counts, trained = in_counts(found), on_training(run)
    if code == "no-feasible-round":
        return InShort(BAD, "No round was feasible", counts, f"{about['status']['message'].capitalize()}. {trained}")
    if certificate is None:
        headline = "Violated on training rows" if violating else "Not certified"
        words = f"{trained} Nothing was certified: nothing is said of rows that nobody has seen."
        return InShort(BAD if violating else UNSURE, headline, counts, words)
    sure = f"Judged by held-out rows, with {share(certificate['confidence'])} confidence"
    words = f"{sure}{', approximately' if certificate['approximate'] else ''}. {trained}"
    if any(one.standing is ClientVerdict.VIOLATES for one in found):
        return InShort(BAD, "Violated", counts, words)
    answered = about.get("aim") is None or about["aim"]["answered"]
    if not answered or any(one.standing is ClientVerdict.UNDECIDED for one in found):
        return InShort(BAD if violating else UNSURE, "Not certified", counts, words)
    if violating:
        return InShort(BAD, "Certified, but violated on training rows", counts, words)
    if code == "stopped":
        return InShort(UNSURE, "Stopped before its end", counts, words)
    return InShort(GOOD, "Certified, approximately" if certificate["approximate"] else "Certified", counts, words)


def in_counts(found: list[ClientStanding]) -> str:
    """As "3 of 4 meet, 1 undecided (other: about 120 rows more would decide)"."""
    ordered = [found[i] for i in worst_first(found)]
    by = {standing: [one for one in ordered if one.standing is standing] for standing in ClientVerdict}
    meeting = len(by[ClientVerdict.MEETS])
    said = [f"{meeting:,} of {len(found):,} meet{'s' * (meeting == len(found) == 1)}"]
    if meeting == len(found) > 1:
        said = [f"All {meeting:,} meet"]
    if by[ClientVerdict.VIOLATES]:
        names = [one.name for one in by[ClientVerdict.VIOLATES]]
        said.append(f"{len(names):,} violate{'s' * (len(names) == 1)} ({few_of(names, FEW)})")
    if by[ClientVerdict.UNDECIDED]:
        undecided = by[ClientVerdict.UNDECIDED]
        said.append(f"{len(undecided):,} undecided ({_what_would_decide(undecided)})")
    return ", ".join(said)


def _what_would_decide(undecided: list[ClientStanding]) -> str:
    """How many rows; by client, where these are few."""
    needing = sorted((one for one in undecided if one.more_rows), key=lambda one: one.more_rows or 0)
    if not needing:
        return few_of([one.name for one in undecided], FEW)
    if len(needing) > FEW:
        least, most = needing[0].more_rows, needing[-1].more_rows
        many = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        who = "each needs" if len(needing) == len(undecided) else f"{len(needing):,} of them need"
        return f"{who} about {many} rows more"
    told = f"{', '.join(f'{one.name}: about {one.more_rows:,}' for one in needing)} rows more would decide"
    others = [one.name for one in undecided if not one.more_rows]
    return told if not others else f"{told}; {few_of(others, FEW)}"


def on_training(run: Run) -> str:
    """What the training rows say."""
    about = run.about
    clients, violating = about["clients"], about["violating"]
    stopped = about["status"]["code"] == "stopped"
    begin = f"The run was stopped after {about['rounds']:,} rounds. " if stopped else ""
    if not violating:
        return f"{begin}On their training rows all {clients:,} meet."
    are = "is" if len(violating) == 1 else "are"
    above = f"{len(violating):,} of {clients:,} {are} above the bound: {few_of(violating, FEW)}"
    return f"{begin}On their training rows {above}."
