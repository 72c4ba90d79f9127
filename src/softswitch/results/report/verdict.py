"""The verdict of a run: the outcome of every client, and a headline."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from softswitch.results.folder import Run
from softswitch.support.text import format_percent, join_first

GOOD, UNSURE, BAD = "good", "unsure", "bad"
MARKS = {GOOD: "✔", UNSURE: "?", BAD: "✘"}
MAX_NAMES = 3  # number of clients that a summary names


class ClientVerdict(StrEnum):
    """The verdict on a client, in the order of importance."""

    VIOLATES = "violates"
    UNDECIDED = "undecided"
    MEETS = "meets"


CLIENT_MARKS = {ClientVerdict.VIOLATES: "✘", ClientVerdict.UNDECIDED: "?", ClientVerdict.MEETS: "✔"}
"""Shown in addition to the colour."""


class ClientResult(NamedTuple):
    """The outcome of one client: the largest constraint on training rows, and its limits on held-out rows if any."""

    name: str
    verdict: ClientVerdict
    reason: str
    constraint: float
    estimate: float = math.nan
    lower: float = math.nan
    upper: float = math.nan
    more_rows: int | None = None


class RunVerdict(NamedTuple):
    """The outcome of a run; its level is good, unsure or bad."""

    level: str
    headline: str
    counts: str
    details: str


def summarise_clients(run: Run) -> list[ClientResult]:
    """Return the outcome of every client, in the order of the run's table."""
    tolerance, table = run.about["tolerance"], run.clients
    certified = {str(client["client"]): client for client in (run.certificate or {}).get("clients", [])}
    columns = [values for name, values in table.items() if name.startswith("constraint")]
    summaries = []
    for name, constraint in zip(table["client"], np.max(np.array(columns, dtype=float), axis=0).tolist(), strict=True):
        if name in certified:
            summaries.append(_summarise_certified(name, constraint, certified[name]))
        elif certified:
            summaries.append(ClientResult(name, ClientVerdict.UNDECIDED, "no held-out rows", constraint))
        else:
            verdict = ClientVerdict.MEETS if constraint <= tolerance else ClientVerdict.VIOLATES
            summaries.append(ClientResult(name, verdict, "on training rows", constraint))
    return summaries


def _summarise_certified(name: str, constraint: float, certified: dict[str, Any]) -> ClientResult:
    limits = [
        tuple(math.nan if interval[side] is None else interval[side] for side in ("estimate", "lower", "upper"))
        for interval in certified["constraints"]
    ]
    estimate, lower, upper = max(limits, key=lambda limit: math.inf if math.isnan(limit[2]) else limit[2])
    more = certified.get("rows_needed")
    decided = {"meets": ClientVerdict.MEETS, "violates": ClientVerdict.VIOLATES}
    verdict = decided.get(certified["verdict"], ClientVerdict.UNDECIDED)
    reason = ""
    if certified["verdict"] == "unknown":
        reason = "no relevant held-out rows"
    elif verdict is ClientVerdict.UNDECIDED and more is not None:
        reason = f"about {more:,} more rows" if more else "depends on other clients"
    return ClientResult(name, verdict, reason, constraint, estimate, lower, upper, more)


def sort_worst_first(clients: list[ClientResult]) -> list[int]:
    """Return the indices of clients: violating first, then undecided, then meeting; the largest constraint first."""
    ranks = {verdict: rank for rank, verdict in enumerate(ClientVerdict)}

    def key(i: int) -> tuple[float, ...]:
        levels = (clients[i].estimate, clients[i].upper, clients[i].constraint)
        return (ranks[clients[i].verdict], *(math.inf if math.isnan(level) else -level for level in levels))

    return sorted(range(len(clients)), key=key)


def judge_run(run: Run, clients: list[ClientResult] | None = None) -> RunVerdict:
    """Return the verdict on a run, given the outcomes of its clients if they are known."""
    clients = summarise_clients(run) if clients is None else clients
    about, certificate = run.about, run.certificate
    code, violating = about["status"]["code"], about["violating"]
    message = f"{about['status']['message'].capitalize()}."
    if code == "diverged":
        return RunVerdict(BAD, "The run diverged", "", message)
    counts, training = count_verdicts(clients), _describe_training(run)
    if code == "no-feasible-round":
        return RunVerdict(BAD, "No round was feasible", counts, f"{message} {training}")
    if certificate is None:
        headline = "Violated on training rows" if violating else "Not certified"
        details = f"{training} There is no certificate for new data."
        return RunVerdict(BAD if violating else UNSURE, headline, counts, details)
    approximate = ", approximately" * certificate["approximate"]
    confidence = f"Based on held-out rows, with {format_percent(certificate['confidence'])} confidence{approximate}"
    details = f"{confidence}. {training}"
    if any(client.verdict is ClientVerdict.VIOLATES for client in clients):
        return RunVerdict(BAD, "Violated", counts, details)
    is_certified = about.get("aim") is None or about["aim"]["answered"]
    if not is_certified or any(client.verdict is ClientVerdict.UNDECIDED for client in clients):
        return RunVerdict(BAD if violating else UNSURE, "Not certified", counts, details)
    if violating:
        return RunVerdict(BAD, "Certified, but violated on training rows", counts, details)
    if code == "stopped":
        return RunVerdict(UNSURE, "Stopped early", counts, details)
    return RunVerdict(GOOD, f"Certified{approximate}", counts, details)


def count_verdicts(clients: list[ClientResult]) -> str:
    """Return a text such as "3 of 4 meet, 1 undecided (other: about 120 more rows needed)"."""
    ordered = [clients[i] for i in sort_worst_first(clients)]
    groups = {verdict: [client for client in ordered if client.verdict is verdict] for verdict in ClientVerdict}
    meeting = len(groups[ClientVerdict.MEETS])
    parts = [f"{meeting:,} of {len(clients):,} meet{'s' * (meeting == len(clients) == 1)}"]
    if meeting == len(clients) > 1:
        parts = [f"All {meeting:,} meet"]
    if groups[ClientVerdict.VIOLATES]:
        names = [client.name for client in groups[ClientVerdict.VIOLATES]]
        parts.append(f"{len(names):,} violate{'s' * (len(names) == 1)} ({join_first(names, MAX_NAMES)})")
    if undecided := groups[ClientVerdict.UNDECIDED]:
        parts.append(f"{len(undecided):,} undecided ({_describe_needed_rows(undecided)})")
    return ", ".join(parts)


def _describe_needed_rows(undecided: list[ClientResult]) -> str:
    needing = sorted((client for client in undecided if client.more_rows), key=lambda client: client.more_rows or 0)
    if not needing:
        return join_first([client.name for client in undecided], MAX_NAMES)
    if len(needing) > MAX_NAMES:
        least, most = needing[0].more_rows, needing[-1].more_rows
        rows = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        who = "each needs" if len(needing) == len(undecided) else f"{len(needing):,} of them need"
        return f"{who} about {rows} more rows"
    needed = f"{', '.join(f'{client.name}: about {client.more_rows:,}' for client in needing)} more rows needed"
    rest = [client.name for client in undecided if not client.more_rows]
    return needed if not rest else f"{needed}; {join_first(rest, MAX_NAMES)}"


def _describe_training(run: Run) -> str:
    clients, violating = run.about["clients"], run.about["violating"]
    is_stopped = run.about["status"]["code"] == "stopped"
    stopped = f"The run was stopped after {run.about['rounds']:,} rounds. " if is_stopped else ""
    if not violating:
        return f"{stopped}On their training rows all {clients:,} meet."
    above = f"{len(violating):,} of {clients:,} {'is' if len(violating) == 1 else 'are'} above the bound"
    return f"{stopped}On their training rows {above}: {join_first(violating, MAX_NAMES)}."
