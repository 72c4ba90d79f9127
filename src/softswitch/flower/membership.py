"""Names of clients: written in one way, and none that could be taken for another."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, RecordDict

from softswitch.flower import messages as wire
from softswitch.support import checks


def normalize_name(name: str) -> str:
    """A name in Unicode's composed form, without blanks around it.

    Args:
        name: as it was given.
    """
    return unicodedata.normalize("NFC", name).strip()


def confusable_key(name: str) -> str:
    """What two names have in common that look alike: neither case nor Unicode's variants of a letter tell them apart.

    Args:
        name: as it was given.
    """
    folded = unicodedata.normalize("NFKC", name).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def check_distinct_names(argument: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names as they are written, or raise where one is empty, or two are the same or look alike.

    Args:
        argument: what they were given as, for the message.
        names: of clients.
    """
    seen: dict[str, str] = {}
    for name in map(normalize_name, names):
        if not name:
            raise ValueError(f"{argument} must name every client, but one name is empty")
        before = seen.get(confusable_key(name))
        if before is not None:
            alike = "twice" if before == name else f"beside {before!r}, which looks the same"
            raise ValueError(f"{argument} must name every client once, but has {name!r} {alike}")
        seen[confusable_key(name)] = name
    return tuple(seen.values())


ROWS = ("rows", "held_out_rows", "value_rows", "gradient_rows")
MOST_CONSTRAINTS, MOST_STATISTICS, MOST_CLASSES = 10_000, 100_000, 10**6
"""What a client may say of itself, at most."""


@dataclass(frozen=True)
class ClientInfo:
    """What a client told of itself; see ``LocalOracle``."""

    name: str
    rows: int
    held_out_rows: int
    value_rows: int
    gradient_rows: int
    constraints: int
    statistics: int = 0
    has_surrogate: bool = False
    excluded_classes: int = 0
    can_repeat_reports: bool = False


@cache
def _package() -> str:
    """The version of softswitch; a thousand clients in one process look it up once."""
    try:
        return version("softswitch")
    except PackageNotFoundError:
        return "of unknown version"


def get_version() -> dict[str, Any]:
    """What this side speaks, to be sent."""
    return {"protocol": wire.PROTOCOL, "softswitch": _package()}


def registration_request() -> RecordDict:
    """What the server says first."""
    return RecordDict({wire.SETTINGS: ConfigRecord(get_version())})


def protocol_mismatch(told: Mapping[str, Any] | None, other: str) -> str | None:
    """Why the two sides cannot talk, with what to upgrade; None where they can.

    Args:
        told: what the other side says of its version; None where it says nothing at all.
        other: which side that is, "server" or "client".
    """
    protocol = None if told is None else told.get("protocol")
    if protocol == wire.PROTOCOL:
        return None
    here = "client" if other == "server" else "server"
    own = f"this {here} speaks version {wire.PROTOCOL} (softswitch {get_version()['softswitch']})"
    if not isinstance(protocol, int) or told is None:
        return f"the {other} tells no version of the protocol, {own}: upgrade softswitch at the {other}"
    theirs = f"the {other} speaks version {protocol} of the protocol (softswitch {told.get('softswitch')})"
    older = other if protocol < wire.PROTOCOL else here
    return f"{theirs}, {own}: upgrade softswitch at the {older}"


def parse_registration(content: RecordDict, largest_rows: int) -> ClientInfo:
    """What a client tells of itself, or raise.

    Args:
        content: of its answer.
        largest_rows: it may say so many rows at most.
    """
    about = content.get(wire.REGISTRATION)
    if not isinstance(about, ConfigRecord):
        raise wire.InvalidMessageError("it does not run a softswitch client")
    if (why := protocol_mismatch(about, "client")) is not None:
        raise wire.InvalidMessageError(wire.sanitize(why))
    rows = {name: wire.read_int(about, name, largest_rows) for name in ROWS}
    constraints = wire.read_int(about, "constraints", MOST_CONSTRAINTS)
    if not constraints:
        raise wire.InvalidMessageError("it has no constraint")
    counted = wire.read_int(about, "statistics", MOST_STATISTICS) if "statistics" in about else 0
    left_out = wire.read_int(about, "excluded_classes", MOST_CLASSES) if "excluded_classes" in about else 0
    name, has_surrogate = normalize_name(wire.read_text(about, "name")), about.get("has_surrogate") is True
    return ClientInfo(
        name,
        constraints=constraints,
        statistics=counted,
        has_surrogate=has_surrogate,
        excluded_classes=left_out,
        can_repeat_reports=about.get("can_repeat_reports") is True,
        **rows,
    )


PEM, SSH = "-----BEGIN", ("ssh-", "ecdsa-", "sk-")


def read_public_key(given: str | bytes | Path) -> str:
    """A public key in PEM, of the text of one (OpenSSH or PEM) or of the path of its file; raise where it is none.

    Args:
        given: the text, or the path.
    """
    text = given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)
    own = text.strip()
    if isinstance(given, Path) or not own.startswith((PEM, *SSH)):
        file = Path(text).expanduser()
        if "\n" in text or not file.is_file():
            raise ValueError(
                f"a client's key must be the text of a public key (OpenSSH or PEM) or the path of its file, but is "
                f"{text[:80]!r}"
            )
        own = file.read_text(encoding="utf-8", errors="replace").strip()
    if "PRIVATE KEY" in own:
        raise ValueError("a client's key must be its public key, but this is a private one: give the .pub file")
    try:
        key = _loaded(own.encode())
    except Exception as error:
        raise ValueError(f"{own[:60]!r} … is not a public key that can be read: {error}") from error
    return _written(key, pem=True).decode()


@lru_cache(maxsize=4096)
def encode_key(told: bytes) -> bytes | None:
    """The bytes by which keys are compared, of a key as a SuperLink tells it; None where it is no key.

    Args:
        told: PEM or OpenSSH.
    """
    try:
        return _written(_loaded(told), pem=False)
    except Exception:
        return None


def _loaded(text: bytes) -> Any:
    from cryptography.hazmat.primitives import serialization

    if text.startswith(PEM.encode()):
        return serialization.load_pem_public_key(text)
    return serialization.load_ssh_public_key(text)


def _written(key: Any, *, pem: bool) -> bytes:
    from cryptography.hazmat.primitives import serialization

    encoding = serialization.Encoding.PEM if pem else serialization.Encoding.DER
    written: bytes = key.public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    return written


@dataclass(frozen=True)
class AllowedClient:
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
        object.__setattr__(self, "key", read_public_key(self.key))
        for name in ("rows", "held_out_rows"):
            if getattr(self, name) is not None:
                checks.whole_number(name, getattr(self, name), at_least=0)

    @property
    def identity(self) -> bytes:
        """The bytes by which its key is compared."""
        own = encode_key(str(self.key).encode())
        assert own is not None
        return own


def find_keys(folder: str | Path) -> dict[str, Path]:
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


def parse_allow_list(clients: Mapping[str, str | Path | AllowedClient]) -> dict[str, AllowedClient]:
    """The list with names as they are written, or raise where two clients have the same name or key.

    Args:
        clients: each one's key by its name, or more of it.
    """
    if not isinstance(clients, Mapping):
        raise TypeError(f"clients must be a dict from names to public keys, but is {clients!r:.200}")
    names = check_distinct_names("clients", map(str, clients))
    found: dict[str, AllowedClient] = {}
    owners: dict[bytes, str] = {}
    for name, given in zip(names, clients.values(), strict=True):
        try:
            found[name] = given if isinstance(given, AllowedClient) else AllowedClient(given)
        except ValueError as error:
            raise ValueError(f"clients[{name!r}]: {error}") from error
        owner = owners.setdefault(found[name].identity, name)
        if owner != name:
            raise ValueError(f"clients must have a key of its own for each, but {owner!r} and {name!r} have the same")
    return found
