"""SignedKeys: clients sign the keys that they mask by, so that the server cannot put its own in their place."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from softswitch.engines.flower.at_client.local import Refused
from softswitch.engines.flower.members.listed import keys_in, listed_clients
from softswitch.engines.flower.secure.sum_terms import Terms


@dataclass(frozen=True)
class SignedKeys:
    """For ``client_app(factory, policy, signed=SignedKeys("node-1", "clients"))``, with secure aggregation.

    The server carries the clients' keys to each other. One that does not keep to the protocol could put keys of its own
    in their place, and read every direction. A client with this signs its keys, and takes part only where all others'
    are signed by who the list says.

    Attributes:
        own: the client's private key: the path of its file (OpenSSH or PEM, without a password), ECDSA or Ed25519; such
            as the one that its node was registered by.
        clients: the public keys of all who may take part, by name, as for ``StrategySettings``; or a folder with a file
            NAME.pub for each. Have it from its owners, not from the server.
    """

    own: str | Path
    clients: Mapping[str, str | Path] | str | Path

    @cached_property
    def _private(self) -> Any:
        text = Path(self.own).expanduser().read_bytes()
        load = serialization.load_ssh_private_key if b"OPENSSH" in text else serialization.load_pem_private_key
        key = load(text, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey):
            raise ValueError(f"own must be an ECDSA or Ed25519 key, but {str(self.own)!r} is another")
        return key

    @cached_property
    def _publics(self) -> dict[str, Any]:
        given = self.clients if isinstance(self.clients, Mapping) else keys_in(self.clients)
        return {
            name: serialization.load_pem_public_key(str(client.key).encode())
            for name, client in listed_clients(given).items()
        }

    def signature(self, name: str, run: int, round_: int, key: bytes) -> bytes:
        """That this key is this client's in this round of this run.

        Args:
            name: the client's.
            run: Flower's number of the run.
            round_: k.
            key: the public key that it masks by.
        """
        text = _text(name, run, round_, key)
        signed: bytes = self._private.sign(text, *_how(self._private))
        return signed

    def check(self, terms: Terms, run: int, *, besides: int) -> None:
        """Raise ``Refused`` where the key of somebody in a sum is not signed by who the list says.

        Args:
            terms: of the sum.
            run: Flower's number of the run.
            besides: the client's own place.
        """
        for place, name in enumerate(terms.names):
            if place == besides:
                continue
            public = self._publics.get(name)
            if public is None:
                raise Refused(f"{name!r} is in the sum and not in its own list of clients")
            if not terms.signatures:
                raise Refused("the keys of the others are not signed, and it takes part with signed ones only")
            text = _text(name, run, terms.round, terms.keys[place])
            try:
                public.verify(terms.signatures[place], text, *_how(public))
            except (InvalidSignature, AttributeError, TypeError):
                raise Refused(f"the key of {name!r} for this round is not signed by its owner") from None


def _how(key: Any) -> tuple[Any, ...]:
    """What a key's kind asks for beside the text."""
    elliptic = isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey)
    return (ec.ECDSA(hashes.SHA256()),) if elliptic else ()


def _text(name: str, run: int, round_: int, key: bytes) -> bytes:
    """What is signed."""
    own = name.encode()
    return b"softswitch key to mask by" + struct.pack("<Qqq", run % 2**64, round_, len(own)) + own + key
