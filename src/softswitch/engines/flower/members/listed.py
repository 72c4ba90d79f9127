"""The list of those who may take part: each client's public key, and what is known of it beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from softswitch.engines.flower.members.client_names import distinct_names
from softswitch.engines.flower.members.public_keys import key_bytes, key_text
from softswitch.support import checks


@dataclass(frozen=True)
class ListedClient:
    """A client that may take part, known by its public key.

    Attributes:
        key: its public key: the text of it (OpenSSH or PEM), or the path of its file. It is kept in PEM.
        rows: how many rows it trains on at most; None: as many as any client may have (``largest_rows``).
        held_out_rows: how many rows it holds out at most; None: likewise.
    """

    key: str | Path
    rows: int | None = None
    held_out_rows: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", key_text(self.key))
        for name in ("rows", "held_out_rows"):
            if getattr(self, name) is not None:
                checks.whole_number(name, getattr(self, name), at_least=0)

    @property
    def identity(self) -> bytes:
        """The bytes by which its key is compared."""
        own = key_bytes(str(self.key).encode())
        assert own is not None
        return own


def keys_in(folder: str | Path) -> dict[str, Path]:
    """A list of clients from a folder of public keys, each in a file NAME.pub.

    Args:
        folder: where they are.
    """
    files = sorted(Path(folder).expanduser().glob("*.pub"))
    if not files:
        raise ValueError(
            f"clients must be a folder with a file NAME.pub for every client, but {str(folder)!r} has none"
        )
    return {file.stem: file for file in files}


def listed_clients(clients: Mapping[str, str | Path | ListedClient]) -> dict[str, ListedClient]:
    """The list with names as they are written, or raise where two clients have the same name or key.

    Args:
        clients: each one's key by its name, or more of it.
    """
    if not isinstance(clients, Mapping):
        raise TypeError(f"clients must be a dict from names to public keys, but is {clients!r:.200}")
    names = distinct_names("clients", map(str, clients))
    found: dict[str, ListedClient] = {}
    owners: dict[bytes, str] = {}
    for name, given in zip(names, clients.values(), strict=True):
        try:
            found[name] = given if isinstance(given, ListedClient) else ListedClient(given)
        except ValueError as error:
            raise ValueError(f"clients[{name!r}]: {error}") from error
        owner = owners.setdefault(found[name].identity, name)
        if owner != name:
            raise ValueError(f"clients must have a key of its own for each, but {owner!r} and {name!r} have the same")
    return found
