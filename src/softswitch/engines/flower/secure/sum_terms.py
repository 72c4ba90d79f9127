"""What all clients in a sum must agree on: who is in it, by which keys, with what weight. Both sides know it."""

from __future__ import annotations

import hashlib
import struct
from typing import Any, NamedTuple

from flwr.app import ConfigRecord

from softswitch.engines.flower import wire
from softswitch.engines.flower.secure.pair_secrets import is_key

ROUND_KEY, MASKED, LETTERS, MASKS = "round key", "masked", "letters", "masks"
"""The names of records in messages."""
MOST_IN_A_SUM, LONGEST_KEY, LONGEST_LETTER = 10_000, 1_000, 1_000
"""What may be told, at most: clients, and bytes of a key or a letter."""


class Terms(NamedTuple):
    """The terms of one round's sum. Masks are made of a digest of them: told differently to two, they do not cancel.

    Attributes:
        round: k.
        names: of the clients.
        keys: their public keys for this round.
        weights: r_i.
        shares: how many of them must be there to take the masks off.
        limit: the largest norm of a direction.
        signatures: of the keys by their owners, where they sign; else empty. No part of the digest.
    """

    round: int
    names: list[str]
    keys: list[bytes]
    weights: list[float]
    shares: int
    limit: float
    signatures: list[bytes]

    def record(self) -> ConfigRecord:
        """To be sent."""
        return ConfigRecord(self._asdict())

    def digest(self) -> bytes:
        """Of all that must be the same for everyone."""
        found = hashlib.sha256(struct.pack("<qqqd", self.round, len(self.names), self.shares, self.limit))
        for name, key, weight in zip(self.names, self.keys, self.weights, strict=True):
            for part in (name.encode(), key, struct.pack("<d", weight)):
                found.update(struct.pack("<q", len(part)) + part)
        return found.digest()


def terms_of(record: Any) -> Terms:
    """The terms that the server told, or raise.

    Args:
        record: as it came.
    """
    if not isinstance(record, ConfigRecord):
        raise wire.Unacceptable("there are no terms of a sum")
    told: dict[str, Any] = dict(record)
    names, keys, weights = (told.get(name) for name in ("names", "keys", "weights"))
    signatures = told.get("signatures")
    lists = (names, str), (keys, bytes), (weights, float), (signatures, bytes)
    if not all(isinstance(own, list) and all(isinstance(one, kind) for one in own) for own, kind in lists):
        raise wire.Unacceptable("its terms of a sum are not lists of names, keys and weights")
    assert isinstance(names, list) and isinstance(keys, list)  # noqa: PT018
    assert isinstance(weights, list) and isinstance(signatures, list)  # noqa: PT018
    many = len(names)
    if not 2 <= many <= MOST_IN_A_SUM or not len(keys) == len(weights) == len(set(names)) == len(set(keys)) == many:
        raise wire.Unacceptable("its terms of a sum must have one name, key and weight for each of several clients")
    if len(signatures) not in (0, many) or max(map(len, keys)) > LONGEST_KEY:
        raise wire.Unacceptable("its terms of a sum have other signatures than keys, or keys too long")
    if not all(0 <= weight <= 1 for weight in weights) or not 0 < sum(weights) < 1.001:
        raise wire.Unacceptable("its weights must lie between 0 and 1 and sum to 1 at most")
    limit, shares = wire.real(told, "limit"), wire.whole(told, "shares", many)
    if limit <= 0 or 2 * shares <= many:
        raise wire.Unacceptable("its limit must be above 0, and more than half of the clients must share a mask")
    return Terms(wire.whole(told, "round", 2**63 - 1), names, keys, weights, shares, limit, signatures)


def key_in(content: Any) -> tuple[bytes, bytes]:
    """A client's key for the round, and its signature or nothing; or raise.

    Args:
        content: of its report.
    """
    record = content.get(ROUND_KEY)
    if not isinstance(record, ConfigRecord):
        raise wire.Unacceptable("it tells no key to mask its direction by; is its softswitch older than the server's?")
    key, signature = record.get("key"), record.get("signature", b"")
    if not isinstance(key, bytes) or len(key) > LONGEST_KEY or not is_key(key):
        raise wire.Unacceptable("its key for the round is none")
    if not isinstance(signature, bytes) or len(signature) > LONGEST_KEY:
        raise wire.Unacceptable("its signature of the key for the round is none")
    return key, signature
