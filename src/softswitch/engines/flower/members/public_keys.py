"""Public keys, in whatever form they are written: the same key is the same bytes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

PEM, SSH = "-----BEGIN", ("ssh-", "ecdsa-", "sk-")


def key_text(given: str | bytes | Path) -> str:
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
def key_bytes(told: bytes) -> bytes | None:
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
