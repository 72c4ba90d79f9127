"""The client's part of secure aggregation: a round key, a masked direction, and the removal of masks.

Each client adds two kinds of masks to its direction: one of its own, shared among all clients by Shamir's scheme, and
one in common with each other client, which cancels in the sum. For every other client it reveals either a share of that
client's own mask, if its direction arrived, or the common mask, if it did not. It never reveals both, which would
unmask a single direction. A round key serves for one direction and one reply about masks.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from flwr.app import ConfigRecord, Context, Message
from flwr.common.secure_aggregation.crypto.shamir import create_shares

from softswitch.flower import messages as wire
from softswitch.flower import secure_protocol as protocol
from softswitch.flower.local_client import RefusalError
from softswitch.flower.membership import find_keys, parse_allow_list
from softswitch.flower.secure_protocol import MASKED, ROUND_KEY, SHARES, TERMS, AggregationTerms, derive_key

MIN_CLIENTS = 2
"""A sum of fewer clients hides none of them."""


@dataclass(frozen=True)
class SigningKeys:
    """Keys that sign the key exchange, as in ``client_app(factory, signing_keys=SigningKeys("node-1", "clients"))``.

    The server forwards the clients' round keys. A server that does not follow the protocol could replace them and read
    every direction. A client with signing keys signs its round keys, and refuses a sum in which another client's key is
    not signed by its owner.

    Attributes:
        private_key: Path of the client's private key (OpenSSH or PEM, without a password), ECDSA or Ed25519; for
            example the key that its node is registered with.
        clients: The public keys of all clients by name, as in ``StrategySettings``, or a folder with one file NAME.pub
            per client. Obtain them from the clients, not from the server.
    """

    private_key: str | Path
    clients: Mapping[str, str | Path] | str | Path

    @cached_property
    def _private(self) -> Any:
        text = Path(self.private_key).expanduser().read_bytes()
        load = serialization.load_ssh_private_key if b"OPENSSH" in text else serialization.load_pem_private_key
        key = load(text, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey):
            raise ValueError(f"private_key must be an ECDSA or Ed25519 key, but {str(self.private_key)!r} is not")
        return key

    @cached_property
    def _publics(self) -> dict[str, Any]:
        clients = self.clients if isinstance(self.clients, Mapping) else find_keys(self.clients)
        return {
            name: serialization.load_pem_public_key(str(client.key).encode())
            for name, client in parse_allow_list(clients).items()
        }

    def sign(self, name: str, run: int, round_: int, key: bytes) -> bytes:
        """Return the signature of a client's public key for a round of a run.

        Args:
            name: The client's name.
            run: Flower's run id.
            round_: The round k.
            key: The public key.
        """
        signature: bytes = self._private.sign(_signed_text(name, run, round_, key), *_signature_scheme(self._private))
        return signature

    def verify(self, terms: AggregationTerms, run: int, *, place: int) -> None:
        """Raise ``RefusalError`` if the key of another client is not signed by its owner.

        Args:
            terms: The terms of the sum.
            run: Flower's run id.
            place: The place of this client in the terms.
        """
        for other, name in enumerate(terms.names):
            if other == place:
                continue
            public = self._publics.get(name)
            if public is None:
                raise RefusalError(f"{name!r} is in the sum, but not in its list of clients")
            if not terms.signatures:
                raise RefusalError("the keys of the other clients are not signed, but it requires signed keys")
            text = _signed_text(name, run, terms.round, terms.keys[other])
            try:
                public.verify(terms.signatures[other], text, *_signature_scheme(public))
            except (InvalidSignature, AttributeError, TypeError):
                raise RefusalError(f"the key of {name!r} for this round is not signed by its owner") from None


def _signature_scheme(key: Any) -> tuple[Any, ...]:
    is_elliptic = isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey)
    return (ec.ECDSA(hashes.SHA256()),) if is_elliptic else ()


def _signed_text(name: str, run: int, round_: int, key: bytes) -> bytes:
    encoded = name.encode()
    return b"softswitch round key" + struct.pack("<Qqq", run % 2**64, round_, len(encoded)) + encoded + key


# ---- the client's part; its state is in Flower's context


def create_round_key(round_: int, name: str, context: Context, signing_keys: SigningKeys | None) -> ConfigRecord:
    """Create the client's key for a round, and return the record that is sent with its report."""
    private, public = protocol.generate_key_pair()
    context.state[ROUND_KEY] = ConfigRecord({"round": round_, "private": private, "public": public})
    for outdated in (TERMS, SHARES):
        context.state.pop(outdated, None)
    record = ConfigRecord({"key": public})
    if signing_keys is not None:
        record["signature"] = signing_keys.sign(name, context.run_id, round_, public)
    return record


def mask_direction(
    direction: wire.Arrays,
    terms: AggregationTerms,
    name: str,
    context: Context,
    min_clients: int,
    signing_keys: SigningKeys | None,
) -> dict[str, Any]:
    """Return the records of the masked weighted direction and of the encrypted shares of the client's own mask."""
    key = _get_round_key(context, terms.round)
    if TERMS in context.state:
        raise RefusalError("it has already sent its direction of this round; a key masks one direction only")
    if key["public"] not in terms.keys or terms.names[terms.keys.index(key["public"])] != name:
        raise wire.InvalidMessageError("its terms do not contain this client's name and key")
    place, clients = terms.keys.index(key["public"]), len(terms.names)
    min_clients = max(min_clients, MIN_CLIENTS)
    _check_effective_clients(terms.weights, min_clients)
    weight = terms.weights[place] / sum(terms.weights)  # many light clients could hide a heavy one
    if weight * protocol.WEIGHT_TOLERANCE * min_clients > 1:
        raise RefusalError(f"it would have {weight:.0%} of the weight in the sum, but accepts at most 1/{min_clients}")
    if signing_keys is not None:
        signing_keys.verify(terms, context.run_id, place=place)
        required = min(clients, protocol.malicious_server_threshold(clients, min_clients))
        if terms.shares < required:
            raise RefusalError(f"{terms.shares} of {clients} clients can remove the masks, but it requires {required}")
    if not all(np.isfinite(part).all() for part in direction.values()):
        raise RefusalError("its direction contains NaN or infinity")
    secrets = _derive_secrets(terms, key, place)
    digest, own_seed = terms.digest(), os.urandom(protocol.SEED_BYTES)
    total = protocol.quantize(direction, terms.weights[place], terms.limit)
    total += protocol.generate_mask(own_seed, total.size)
    for other, secret in secrets.items():
        common = protocol.generate_mask(derive_key(secret, b"mask", digest), total.size)
        total = total + common if other > place else total - common
    shares = create_shares(own_seed, terms.shares, clients)
    encrypted = [
        protocol.encrypt(protocol.derive_share_key(secrets[other], place, other, digest), share)
        if other != place
        else b""
        for other, share in enumerate(shares)
    ]
    context.state[TERMS] = terms.record()
    context.state[SHARES] = ConfigRecord({"own": shares[place]})
    return {MASKED: wire.to_record({"sum": total}), SHARES: ConfigRecord({"shares": encrypted})}


def unmask(message: Message, context: Context, min_clients: int) -> ConfigRecord:
    """Return shares of the own masks of clients whose direction arrived, and the common masks with lost clients."""
    request: dict[str, Any] = dict(wire.get_config(message.content, SHARES))
    if TERMS not in context.state or SHARES not in context.state:
        raise RefusalError("it has no masked direction: it was restarted, or has already revealed its masks")
    terms, key = protocol.parse_terms(context.state[TERMS]), _get_round_key(context, None)
    place, clients = terms.keys.index(key["public"]), len(terms.names)
    arrived, encrypted = request.get("arrived"), request.get("shares")
    if not isinstance(arrived, list) or not isinstance(encrypted, list) or len(arrived) != len(encrypted):
        raise wire.InvalidMessageError("it must list the clients whose directions arrived, with one share of each")
    if not all(isinstance(other, int) and 0 <= other < clients for other in arrived) or len(set(arrived)) < len(
        arrived
    ):
        raise wire.InvalidMessageError("it lists a client that is not in the sum, or one twice")
    if place not in arrived or len(arrived) < terms.shares:
        raise RefusalError(
            f"{len(arrived)} of {clients} directions arrived, but it requires {terms.shares} with its own"
        )
    _check_effective_clients([terms.weights[other] for other in arrived], max(min_clients, MIN_CLIENTS))
    secrets, digest = _derive_secrets(terms, key, place), terms.digest()
    state: Any = context.state[SHARES]
    shares = [
        state["own"]
        if other == place
        else _try_decrypt(protocol.derive_share_key(secrets[other], other, place, digest), share)
        for other, share in zip(arrived, encrypted, strict=True)
    ]
    del context.state[SHARES], context.state[ROUND_KEY]  # before the reply, so that masks are revealed only once
    lost = [derive_key(secrets[other], b"mask", digest) for other in range(clients) if other not in arrived]
    return ConfigRecord({"shares": shares, "masks": lost})


def _try_decrypt(key: bytes, share: Any) -> bytes:
    """Return a decrypted share, or nothing if it is unreadable: the shares of other clients may suffice."""
    try:
        return protocol.decrypt(key, share)
    except (ValueError, TypeError):
        return b""


def _get_round_key(context: Context, round_: int | None) -> dict[str, Any]:
    key: Any = context.state.get(ROUND_KEY)
    if not isinstance(key, ConfigRecord) or round_ not in (None, key["round"]):
        raise RefusalError("it lost its key for the round in a restart after its report")
    return dict(key)


def _check_effective_clients(weights: list[float], min_clients: int) -> None:
    if not protocol.has_enough_clients(weights, min_clients):
        raise RefusalError(
            f"the effective number of clients in the sum is {protocol.effective_clients(weights):.2f}, but it requires "
            f"{min_clients}"
        )


def _derive_secrets(terms: AggregationTerms, key: dict[str, Any], place: int) -> dict[int, bytes]:
    try:
        return protocol.derive_shared_secrets(
            key["private"], {other: public for other, public in enumerate(terms.keys) if other != place}
        )
    except ValueError as error:
        raise wire.InvalidMessageError(f"its terms contain an invalid key: {wire.sanitize(str(error))}") from error
