"""Names of clients: written in one way, and none that could be taken for another."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def written_name(name: str) -> str:
    """A name in Unicode's composed form, without blanks around it.

    Args:
        name: as it was given.
    """
    return unicodedata.normalize("NFC", name).strip()


def look_of(name: str) -> str:
    """What two names have in common that look alike: neither case nor Unicode's variants of a letter tell them apart.

    Args:
        name: as it was given.
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def distinct_names(argument: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names as they are written, or raise where one is empty, or two are the same or look alike.

    Args:
        argument: what they were given as, for the message.
        names: of clients.
    """
    seen: dict[str, str] = {}
    for name in map(written_name, names):
        if not name:
            raise ValueError(f"{argument} must name every client, but one name is empty")
        before = seen.get(look_of(name))
        if before is not None:
            alike = "twice" if before == name else f"beside {before!r}, which looks the same"
            raise ValueError(f"{argument} must name every client once, but has {name!r} {alike}")
        seen[look_of(name)] = name
    return tuple(seen.values())
