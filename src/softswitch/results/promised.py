"""A certificate in a few sentences: certified, or no answer at this confidence, what is in the way, what would help."""

from __future__ import annotations

import math

from softswitch.results.certificate import Certificate, ClientCertificate, Verdict
from softswitch.support.text import few_of

NO_ANSWER = "no answer at this confidence"
"""The verdict on a model that was to be certified, and is not."""


def is_answer(certificate: Certificate | None) -> bool:
    """Whether every client is certified."""
    return certificate is not None and certificate.verdict is Verdict.MEETS


def ending(certificate: Certificate | None) -> str:
    """What came of it; None: of a run that was stopped or diverged."""
    if certificate is None:
        return "Nothing was certified: training did not come to its end."
    many, sure = len(certificate.clients), f"{certificate.confidence:.4g}"
    bound = f"at most {certificate.tolerance:g}"
    if is_answer(certificate):
        how = "approximately, since no range of the constraint is known" if certificate.approximate else "a promise"
        where = f"at each of {many} clients" if many > 1 else "at the client"
        return f"Certified: on rows that nobody has seen the constraint is {bound} {where}, confidence {sure} ({how})."
    said = [f"{NO_ANSWER.capitalize()} ({sure}): it cannot be said that the constraint is {bound} at every client."]
    meeting = sum(client.verdict is Verdict.MEETS for client in certificate.clients)
    if meeting:
        said.append(f"{meeting} of {many} clients meet it.")
    in_the_way = {
        Verdict.VIOLATES: ("violates", "violate", "it"),
        Verdict.UNCLEAR: ("has", "have", "too few rows to tell"),
        Verdict.UNKNOWN: ("has", "have", "no row that tells anything"),
    }
    for verdict, words in in_the_way.items():
        named = [_named(client) for client in certificate.clients if client.verdict is verdict]
        if named:
            one, several, what = words
            said.append(f"{len(named)} {one if len(named) == 1 else several} {what}: {few_of(named)}.")
    if math.isfinite(certificate.worst_constraint):
        about = "about " if certificate.approximate else ""
        said.append(
            f"The smallest bound that this model could be certified for by these rows is {about}"
            f"{_rounded_up(certificate.worst_constraint)}."
        )
    said.append("What helps: more rows of these clients, a larger bound, or a lower confidence, settled beforehand.")
    return " ".join(said)


def looked_at_before(times: int) -> list[str]:
    """What to say where the same rows have certified so many models of other runs; nothing where none."""
    if not times:
        return []
    return [
        f"The same rows have certified {times} other model{'s' * (times > 1)} beside this run. What is promised is "
        "promised of one run by itself: who tries many and keeps the best needs new rows."
    ]


def _named(client: ClientCertificate) -> str:
    rows = min(interval.rows for interval in client.constraints)
    more = f", about {client.rows_needed:,} more would do" if client.rows_needed else ""
    return f"{client.client} ({rows:,} rows{more})"


def _rounded_up(value: float) -> str:
    digits = 3 - math.floor(math.log10(abs(value))) if value else 3
    return f"{math.ceil(value * 10**digits) / 10**digits:.4g}"
