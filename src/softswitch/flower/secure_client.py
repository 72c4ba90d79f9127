"""A client's side of a sum: a key for the round, its masked direction, and what takes the masks of others off.

What a client keeps is in Flower's context: its key from the report to the end of the round. A key serves for one
direction and one answer about masks. A client tells of another either its share of that one's own mask, where its
direction arrived, or the mask that the two have in common, where it did not, and never both: with both the server could
take all masks off a single direction.
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

from softswitch.flower import messages as wire
from softswitch.flower import secure_protocol as secrets
from softswitch.flower.local_client import RefusalError
from softswitch.flower.membership import find_keys, parse_allow_list
from softswitch.flower.secure_protocol import (
    MASKED,
    ROUND_KEY,
    ROUNDING,
    SHARES,
    AggregationTerms,
    effective_clients,
    has_enough_clients,
    malicious_server_threshold,
    parse_terms,
    quantize,
)


@dataclass(frozen=True)
class SigningKeys:
    """For ``client_app(factory, policy, signing_keys=SigningKeys("node-1", "clients"))``, with secure aggregation.

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
        given = self.clients if isinstance(self.clients, Mapping) else find_keys(self.clients)
        return {
            name: serialization.load_pem_public_key(str(client.key).encode())
            for name, client in parse_allow_list(given).items()
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

    def check(self, terms: AggregationTerms, run: int, *, besides: int) -> None:
        """Raise ``RefusalError`` where the key of somebody in a sum is not signed by who the list says.

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
                raise RefusalError(f"{name!r} is in the sum and not in its own list of clients")
            if not terms.signatures:
                raise RefusalError("the keys of the others are not signed, and it takes part with signed ones only")
            text = _text(name, run, terms.round, terms.keys[place])
            try:
                public.verify(terms.signatures[place], text, *_how(public))
            except (InvalidSignature, AttributeError, TypeError):
                raise RefusalError(f"the key of {name!r} for this round is not signed by its owner") from None


def _how(key: Any) -> tuple[Any, ...]:
    """What a key's kind asks for beside the text."""
    elliptic = isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey)
    return (ec.ECDSA(hashes.SHA256()),) if elliptic else ()


def _text(name: str, run: int, round_: int, key: bytes) -> bytes:
    """What is signed."""
    own = name.encode()
    return b"softswitch key to mask by" + struct.pack("<Qqq", run % 2**64, round_, len(own)) + own + key


TERMS = "terms of the sum"
"""The record in a client's context that holds what it has agreed to."""
FEWEST_TOGETHER = 2
"""A sum of fewer hides nobody."""


def create_round_key(round_: int, name: str, context: Context, signed: SigningKeys | None) -> ConfigRecord:
    """A new key for a round, to be told with the report.

    Args:
        round_: k.
        name: the client's.
        context: Flower's.
        signed: how the client signs it; None: not at all.
    """
    private, public = secrets.generate_key_pair()
    context.state[ROUND_KEY] = ConfigRecord({"round": round_, "private": private, "public": public})
    for old in (TERMS, SHARES):
        context.state.pop(old, None)
    told: dict[str, Any] = {"key": public}
    if signed is not None:
        told["signature"] = signed.signature(name, context.run_id, round_, public)
    return ConfigRecord(told)


def mask_direction(
    direction: wire.Arrays, terms: AggregationTerms, name: str, context: Context, least: int, signed: SigningKeys | None
) -> dict[str, Any]:
    """The records of an answer: the weighted direction under masks, and letters to the others with shares of its own.

    Args:
        direction: u_i, no longer than the terms' limit.
        terms: of the sum.
        name: the client's.
        context: Flower's.
        least: the effective number of clients that the client asks for.
        signed: by which the others' keys are checked; None: they are not.
    """
    key = _own_key(context, terms.round)
    if TERMS in context.state:
        raise RefusalError("it has sent its direction of this round already: a key masks one direction only")
    mine = _place(terms, key, name)
    _check_together(terms.weights, least)
    _check_own(terms, mine, least)
    if signed is not None:
        signed.check(terms, context.run_id, besides=mine)
        _check_shares(terms, least)
    vector = np.concatenate([np.asarray(part).reshape(-1) for part in direction.values()])
    if not np.isfinite(vector).all():
        raise RefusalError("its direction holds NaN or infinity")
    pairs = _secrets(terms, key, mine)
    digest, own = terms.digest(), os.urandom(secrets.SEED_BYTES)
    total = quantize(direction, terms.weights[mine], terms.limit)
    total += secrets.generate_mask(own, total.size)
    for place, secret in pairs.items():
        shared = secrets.generate_mask(secrets.derive_key(secret, b"mask", digest), total.size)
        total = total + shared if place > mine else total - shared
    shares = secrets.split_secret(own, terms.shares, len(terms.names))
    letters = [
        secrets.encrypt(secrets.derive_share_key(pairs[place], mine, place, digest), share) if place != mine else b""
        for place, share in enumerate(shares)
    ]
    context.state[TERMS] = terms.record()
    context.state[SHARES] = ConfigRecord({"own": shares[mine]})
    return {MASKED: wire.to_record({"sum": total}), SHARES: ConfigRecord({"shares": letters})}


def unmask(message: Message, context: Context, least: int) -> ConfigRecord:
    """What takes masks off the sum, told once: shares of the masks of those who arrived, masks in common with others.

    Args:
        message: the server's, which says who arrived.
        context: Flower's.
        least: the effective number of clients that the client asks for.
    """
    asked = wire.get_config(message.content, SHARES)
    if TERMS not in context.state or SHARES not in context.state:
        raise RefusalError("it has no direction under a mask: it was started again, or has told already")
    terms, key = parse_terms(context.state[TERMS]), _own_key(context, None)
    mine, many = terms.keys.index(key["public"]), len(terms.names)
    told: dict[str, Any] = dict(asked)
    arrived, letters = told.get("arrived"), told.get("shares")
    if not isinstance(arrived, list) or not isinstance(letters, list) or len(arrived) != len(letters):
        raise wire.InvalidMessageError("it does not tell whose directions arrived")
    if not all(isinstance(place, int) and 0 <= place < many for place in arrived) or len(set(arrived)) < len(arrived):
        raise wire.InvalidMessageError("it names clients that are not in the sum, or twice")
    if mine not in arrived or len(arrived) < terms.shares:
        raise RefusalError(
            f"{len(arrived)} of {many} directions arrived, and it answers where {terms.shares} did, its own too"
        )
    _check_together([terms.weights[place] for place in arrived], least)
    pairs, digest = _secrets(terms, key, mine), terms.digest()
    own: Any = context.state[SHARES]
    shares = [
        own["own"] if place == mine else _read(secrets.derive_share_key(pairs[place], place, mine, digest), letter)
        for place, letter in zip(arrived, letters, strict=True)
    ]
    del context.state[SHARES], context.state[ROUND_KEY]  # before the answer: never twice
    lost = [secrets.derive_key(pairs[place], b"mask", digest) for place in range(many) if place not in arrived]
    return ConfigRecord({"shares": shares, "masks": lost})


def _read(seed: bytes, letter: Any) -> bytes:
    """What a letter says; nothing where it cannot be read: others may have one that can."""
    try:
        return secrets.decrypt(seed, letter)
    except (ValueError, TypeError):
        return b""


def _own_key(context: Context, round_: int | None) -> dict[str, Any]:
    """The client's key, of this round."""
    kept: Any = context.state.get(ROUND_KEY)
    if not isinstance(kept, ConfigRecord) or round_ not in (None, kept["round"]):
        raise RefusalError("its key for the round is gone: it was started again between two exchanges")
    return dict(kept)


def _place(terms: AggregationTerms, key: dict[str, Any], name: str) -> int:
    """The client's own among those in the sum."""
    if key["public"] not in terms.keys or terms.names[terms.keys.index(key["public"])] != name:
        raise wire.InvalidMessageError("this client is not in the sum by its name and its key")
    return terms.keys.index(key["public"])


def _check_together(weights: list[float], least: int) -> None:
    """Raise where the others do not hide a client."""
    least = max(least, FEWEST_TOGETHER)
    if not has_enough_clients(weights, least):
        raise RefusalError(
            f"the effective number of clients in the sum is {effective_clients(weights):.2f}, and it takes part where "
            f"it is {least}"
        )


def _check_own(terms: AggregationTerms, mine: int, least: int) -> None:
    """Raise where the client weighs more than one of so many: with many light ones the effective number hides that."""
    share, least = terms.weights[mine] / sum(terms.weights), max(least, FEWEST_TOGETHER)
    if share * ROUNDING * least > 1:
        raise RefusalError(
            f"it would have {share:.0%} of the weight in the sum, and takes part as one of {least} at most"
        )


def _check_shares(terms: AggregationTerms, least: int) -> None:
    """Raise where a server that lies about who arrived could see a sum of too few."""
    least, many = max(least, FEWEST_TOGETHER), len(terms.names)
    wanted = min(many, malicious_server_threshold(many, least))
    if terms.shares < wanted:
        raise RefusalError(
            f"{terms.shares} of {many} clients take the masks off, and it takes part where {wanted} must"
        )


def _secrets(terms: AggregationTerms, key: dict[str, Any], mine: int) -> dict[int, bytes]:
    """What the client shares with each other one, by its place."""
    others = {place: public for place, public in enumerate(terms.keys) if place != mine}
    try:
        return secrets.derive_shared_secrets(key["private"], others)
    except ValueError as error:
        raise wire.InvalidMessageError(
            f"the key of a client in the sum is none: {wire.sanitize(str(error))}"
        ) from error
