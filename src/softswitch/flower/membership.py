"""Who participates: names of clients, their registration, and the allow list of public keys."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from flwr.app import ConfigRecord, RecordDict

from softswitch.flower import messages as wire
from softswitch.support import checks

ROW_COUNTS = ("rows", "held_out_rows", "value_rows", "gradient_rows")
MAX_CONSTRAINTS, MAX_STATISTICS, MAX_CLASSES = 10_000, 100_000, 10**6
PEM, SSH = "-----BEGIN", ("ssh-", "ecdsa-", "sk-")


def normalize_name(name: str) -> str:
    """Return a name in Unicode's composed form, without surrounding whitespace."""
    return unicodedata.normalize("NFC", name).strip()


def confusable_key(name: str) -> str:
    """Return a key that is equal for names that look alike, regardless of case and Unicode variants."""
    folded = unicodedata.normalize("NFKC", name).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def check_distinct_names(argument: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the normalized names, or raise ValueError if one is empty or two look alike."""
    distinct: dict[str, str] = {}
    for name in map(normalize_name, names):
        if not name:
            raise ValueError(f"{argument} must contain no empty name")
        other = distinct.get(confusable_key(name))
        if other is not None:
            problem = "twice" if other == name else f"and {other!r}, which looks the same"
            raise ValueError(f"{argument} must contain every name once, but contains {name!r} {problem}")
        distinct[confusable_key(name)] = name
    return tuple(distinct.values())


@dataclass(frozen=True)
class ClientInfo:
    """The registration of a client; see ``LocalOracle``."""

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
def _package_version() -> str:
    try:
        return version("softswitch")
    except PackageNotFoundError:
        return "of unknown version"


def get_version() -> dict[str, Any]:
    """Return the versions of the protocol and of softswitch, to be sent."""
    return {"protocol": wire.PROTOCOL, "softswitch": _package_version()}


def registration_request() -> RecordDict:
    """Return the content of the server's first message to a client."""
    return RecordDict({wire.SETTINGS: ConfigRecord(get_version())})


def protocol_mismatch(received: Mapping[str, Any] | None, sender: str) -> str | None:
    """Return why the received version is not compatible, or None if it is; the sender is "server" or "client"."""
    protocol = None if received is None else received.get("protocol")
    if protocol == wire.PROTOCOL:
        return None
    receiver = "client" if sender == "server" else "server"
    local = f"this {receiver} uses version {wire.PROTOCOL} (softswitch {_package_version()})"
    if not isinstance(protocol, int) or received is None:
        return f"the {sender} sent no version of the protocol, {local}: upgrade softswitch at the {sender}"
    remote = f"the {sender} uses version {protocol} of the protocol (softswitch {received.get('softswitch')})"
    older = sender if protocol < wire.PROTOCOL else receiver
    return f"{remote}, {local}: upgrade softswitch at the {older}"


def parse_registration(content: RecordDict, largest_rows: int) -> ClientInfo:
    """Return a client's registration, or raise ``InvalidMessageError``."""
    record = content.get(wire.REGISTRATION)
    if not isinstance(record, ConfigRecord):
        raise wire.InvalidMessageError("it does not run a softswitch client")
    if (mismatch := protocol_mismatch(record, "client")) is not None:
        raise wire.InvalidMessageError(wire.sanitize(mismatch))
    rows = {name: wire.read_int(record, name, largest_rows) for name in ROW_COUNTS}
    constraints = wire.read_int(record, "constraints", MAX_CONSTRAINTS)
    if not constraints:
        raise wire.InvalidMessageError("it has no constraint")
    limits = {"statistics": MAX_STATISTICS, "excluded_classes": MAX_CLASSES}
    optional = {name: wire.read_int(record, name, limit) for name, limit in limits.items() if name in record}
    return ClientInfo(
        normalize_name(wire.read_text(record, "name")),
        constraints=constraints,
        has_surrogate=record.get("has_surrogate") is True,
        can_repeat_reports=record.get("can_repeat_reports") is True,
        **rows,
        **optional,
    )


def read_public_key(key: str | bytes | Path) -> str:
    """Return a public key in PEM from its text (OpenSSH or PEM) or the path of its file."""
    given = key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
    text = given.strip()
    if isinstance(key, Path) or not text.startswith((PEM, *SSH)):
        file = Path(given).expanduser()
        if "\n" in given or not file.is_file():
            raise ValueError(
                f"key must be the text of a public key (OpenSSH or PEM) or the path of its file, but is {given[:80]!r}"
            )
        text = file.read_text(encoding="utf-8", errors="replace").strip()
    if "PRIVATE KEY" in text:
        raise ValueError("key must be a public key, but is a private key: use the .pub file")
    try:
        public = _load_key(text.encode())
    except Exception as error:
        raise ValueError(f"key must be a public key, but {text[:60]!r} … is not a public key: {error}") from error
    return _serialize_key(public, pem=True).decode()


@lru_cache(maxsize=4096)
def encode_key(key: bytes) -> bytes | None:
    """Return a key in PEM or OpenSSH as bytes by which keys are compared, or None if it is not a public key."""
    try:
        return _serialize_key(_load_key(key), pem=False)
    except Exception:
        return None


def _load_key(text: bytes) -> Any:
    is_pem = text.startswith(PEM.encode())
    return serialization.load_pem_public_key(text) if is_pem else serialization.load_ssh_public_key(text)


def _serialize_key(key: Any, *, pem: bool) -> bytes:
    encoding = serialization.Encoding.PEM if pem else serialization.Encoding.DER
    data: bytes = key.public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    return data


@dataclass(frozen=True)
class AllowedClient:
    """A client on the allow list, identified by its public key.

    Attributes:
        key: The public key: its text (OpenSSH or PEM) or the path of its file. It is stored in PEM.
        rows: Maximum number of training rows. Default: ``largest_rows`` of ``StrategySettings``.
        held_out_rows: Maximum number of held-out rows. Default: ``largest_rows`` of ``StrategySettings``.
    """

    key: str | Path
    rows: int | None = None
    held_out_rows: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", read_public_key(self.key))
        for name in ("rows", "held_out_rows"):
            if getattr(self, name) is not None:
                checks.check_integer(name, getattr(self, name), minimum=0)

    @property
    def identity(self) -> bytes:
        """The bytes by which keys are compared."""
        identity = encode_key(str(self.key).encode())
        assert identity is not None
        return identity


def find_keys(folder: str | Path) -> dict[str, Path]:
    """Return the files NAME.pub of a folder by name."""
    files = sorted(Path(folder).expanduser().glob("*.pub"))
    if not files:
        raise ValueError(f"clients must be a folder with one file NAME.pub per client, but {str(folder)!r} has none")
    return {file.stem: file for file in files}


def parse_allow_list(clients: Mapping[str, str | Path | AllowedClient]) -> dict[str, AllowedClient]:
    """Return the allow list with normalized names, or raise ValueError if two clients share a name or a key."""
    if not isinstance(clients, Mapping):
        raise TypeError(f"clients must be a dict from names to public keys, but is {clients!r:.200}")
    allowed: dict[str, AllowedClient] = {}
    owners: dict[bytes, str] = {}
    for name, client in zip(check_distinct_names("clients", map(str, clients)), clients.values(), strict=True):
        try:
            allowed[name] = client if isinstance(client, AllowedClient) else AllowedClient(client)
        except ValueError as error:
            raise ValueError(f"clients[{name!r}]: {error}") from error
        owner = owners.setdefault(allowed[name].identity, name)
        if owner != name:
            raise ValueError(f"clients must have different keys, but {owner!r} and {name!r} have the same key")
    return allowed
