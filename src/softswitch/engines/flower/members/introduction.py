"""How server and client introduce themselves: which protocol they speak, and what a client tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from softswitch.engines.flower import wire
from softswitch.engines.flower.members.client_names import written_name

ROWS = ("rows", "held_out_rows", "value_rows", "gradient_rows")
MOST_CONSTRAINTS, MOST_STATISTICS, MOST_CLASSES = 10_000, 100_000, 10**6
"""What a client may say of itself, at most."""


@dataclass(frozen=True)
class Client:
    """What a client told of itself; see ``LocalOracle``."""

    name: str
    rows: int
    held_out_rows: int
    value_rows: int
    gradient_rows: int
    constraints: int
    statistics: int = 0
    stands_in: bool = False
    left_out_classes: int = 0
    reports_again: bool = False


@cache
def _package() -> str:
    """The version of softswitch; a thousand clients in one process look it up once."""
    try:
        return version("softswitch")
    except PackageNotFoundError:
        return "of unknown version"


def own_version() -> dict[str, Any]:
    """What this side speaks, to be sent."""
    return {"protocol": wire.PROTOCOL, "softswitch": _package()}


def greeting() -> RecordDict:
    """What the server says first."""
    return RecordDict({wire.SETTINGS: ConfigRecord(own_version())})


def other_protocol(told: Mapping[str, Any] | None, other: str) -> str | None:
    """Why the two sides cannot talk, with what to upgrade; None where they can.

    Args:
        told: what the other side says of its version; None where it says nothing at all.
        other: which side that is, "server" or "client".
    """
    protocol = None if told is None else told.get("protocol")
    if protocol == wire.PROTOCOL:
        return None
    here = "client" if other == "server" else "server"
    own = f"this {here} speaks version {wire.PROTOCOL} (softswitch {own_version()['softswitch']})"
    if not isinstance(protocol, int) or told is None:
        return f"the {other} tells no version of the protocol, {own}: upgrade softswitch at the {other}"
    theirs = f"the {other} speaks version {protocol} of the protocol (softswitch {told.get('softswitch')})"
    older = other if protocol < wire.PROTOCOL else here
    return f"{theirs}, {own}: upgrade softswitch at the {older}"


def introduced(content: RecordDict, largest_rows: int) -> Client:
    """What a client tells of itself, or raise.

    Args:
        content: of its answer.
        largest_rows: it may say so many rows at most.
    """
    about = content.get(wire.ABOUT)
    if not isinstance(about, ConfigRecord):
        raise wire.Unacceptable("it does not run a softswitch client")
    if (why := other_protocol(about, "client")) is not None:
        raise wire.Unacceptable(wire.said(why))
    rows = {name: wire.whole(about, name, largest_rows) for name in ROWS}
    constraints = wire.whole(about, "constraints", MOST_CONSTRAINTS)
    if not constraints:
        raise wire.Unacceptable("it has no constraint")
    counted = wire.whole(about, "statistics", MOST_STATISTICS) if "statistics" in about else 0
    left_out = wire.whole(about, "left_out_classes", MOST_CLASSES) if "left_out_classes" in about else 0
    name, stands_in = written_name(wire.word(about, "name")), about.get("stands_in") is True
    return Client(
        name,
        constraints=constraints,
        statistics=counted,
        stands_in=stands_in,
        left_out_classes=left_out,
        reports_again=about.get("reports_again") is True,
        **rows,
    )
