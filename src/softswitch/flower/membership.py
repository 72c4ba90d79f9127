"""Who participates: names of clients, their registration, and the allow list of public keys."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_type_hints

from cryptography.hazmat.primitives import serialization
from flwr.app import RecordDict

from softswitch.flower import messages as wire
from softswitch.flower.messages import require

MAX_COUNTS = {"constraints": 10_000, "pieces": 20_000, "statistics": 100_000}
PEM, SSH = "-----BEGIN", ("ssh-", "ecdsa-", "sk-")


def normalize_name(name: str) -> str:
    """Return a name in Unicode's composed form, without surrounding whitespace."""
    return unicodedata.normalize("NFC", name).strip()


def confusable_key(name: str) -> str:
    """Return a key that is equal for names that look alike, regardless of case and Unicode variants."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).split())


def check_distinct_names(argument: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the normalized names, or raise ValueError if one is empty or two look alike."""
    distinct: dict[str, str] = {}
    for name in map(normalize_name, names):
        if not name:
            raise ValueError(f"{argument} must contain no empty name")
        if (other := distinct.get(confusable_key(name))) is not None:
            problem = "twice" if other == name else f"and {other!r}, which looks the same"
            raise ValueError(f"{argument} must contain every name once, but contains {name!r} {problem}")
        distinct[confusable_key(name)] = name
    return tuple(distinct.values())


@dataclass(frozen=True)
class ClientInfo:
    """The registration of a client; see ``LocalOracle``.

    ``pieces`` is 0 if the client returns no second derivatives, and ``is_exact`` whether it computes them in float64.
    """

    name: str
    rows: int
    held_out_rows: int
    value_rows: int
    gradient_rows: int
    constraints: int
    statistics: int = 0
    has_surrogate: bool = False
    can_repeat_reports: bool = False
    pieces: int = 0
    is_exact: bool = True

    @classmethod
    def of(cls, client: Any, *, second_order: bool = False) -> ClientInfo:
        """Return what a client reports about itself, with or without its second derivatives."""
        kinds = get_type_hints(cls)
        known = [field for field in fields(cls) if second_order or field.name not in ("pieces", "is_exact")]
        return cls(**{f.name: kinds[f.name](getattr(client, f.name, f.default)) for f in known})


@cache
def get_version() -> dict[str, Any]:
    """Return the versions of the protocol and of softswitch, to be sent."""
    try:
        package = version("softswitch")
    except PackageNotFoundError:
        package = "of unknown version"
    return {"protocol": wire.PROTOCOL, "softswitch": package}


def protocol_mismatch(received: Mapping[str, Any], sender: str) -> str | None:
    """Return why the received version is not compatible, or None if it is; the sender is "server" or "client"."""
    protocol = received.get("protocol")
    if protocol == wire.PROTOCOL:
        return None
    receiver = "client" if sender == "server" else "server"
    is_older = not isinstance(protocol, int) or protocol < wire.PROTOCOL
    remote = f"the {sender} uses version {protocol} of the protocol (softswitch {received.get('softswitch')})"
    local = f"this {receiver} uses version {wire.PROTOCOL} (softswitch {get_version()['softswitch']})"
    return f"{remote}, {local}: upgrade softswitch at the {sender if is_older else receiver}"


def parse_registration(content: RecordDict) -> ClientInfo:
    """Return a client's registration, or raise ``InvalidMessageError``."""
    record = wire.get_config(content, wire.REGISTRATION, "it does not run a softswitch client")
    mismatch = protocol_mismatch(record, "client")
    require(mismatch is None, wire.sanitize(str(mismatch)))
    values: dict[str, Any] = {"name": normalize_name(wire.read_text(record, "name"))}
    for name, kind in get_type_hints(ClientInfo).items():
        if name not in values:
            values[name] = wire.read(record, name, kind, MAX_COUNTS.get(name, wire.LARGEST_ROWS))
    require(values["constraints"], "it has no constraint")
    return ClientInfo(**values)


@lru_cache(maxsize=4096)
def to_pem(key: str) -> str:
    """Return a public key, given as OpenSSH or PEM, in the PEM by which keys are compared; or raise an exception."""
    load = serialization.load_pem_public_key if key.startswith(PEM) else serialization.load_ssh_public_key
    form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return load(key.encode()).public_bytes(*form).decode()


def read_public_key(key: str | Path) -> str:
    """Return a public key in PEM from its text (OpenSSH or PEM) or the path of its file."""
    text = str(key).strip()
    if isinstance(key, Path) or not text.startswith((PEM, *SSH)):
        file = Path(key).expanduser()
        if "\n" in text or not file.is_file():
            accepted = "the text of a public key (OpenSSH or PEM) or the path of its file"
            raise ValueError(f"key must be {accepted}, but is {text[:80]!r}")
        text = file.read_text(encoding="utf-8", errors="replace").strip()
    if "PRIVATE KEY" in text:
        raise ValueError("key must be a public key, but is a private key: use the .pub file")
    try:
        return to_pem(text)
    except Exception as error:
        raise ValueError(f"key must be a public key, but {text[:60]!r} … is not a public key: {error}") from error


def find_keys(folder: str | Path) -> dict[str, Path]:
    """Return the files NAME.pub of a folder by name."""
    files = sorted(Path(folder).expanduser().glob("*.pub"))
    if not files:
        raise ValueError(f"clients must be a folder with one file NAME.pub per client, but {str(folder)!r} has none")
    return {file.stem: file for file in files}


def parse_allow_list(clients: Mapping[str, str | Path]) -> dict[str, str]:
    """Return the public keys in PEM by normalized name, or raise ValueError if two clients share a name or a key."""
    if not isinstance(clients, Mapping):
        raise TypeError(f"clients must be a dict from names to public keys, but is {clients!r:.200}")
    keys: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name, key in zip(check_distinct_names("clients", map(str, clients)), clients.values(), strict=True):
        try:
            keys[name] = read_public_key(key)
        except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: no home directory for "~"
            raise ValueError(f"clients[{name!r}]: {error}") from error
        if (owner := owners.setdefault(keys[name], name)) != name:
            raise ValueError(f"clients must have different keys, but {owner!r} and {name!r} have the same key")
    return keys
