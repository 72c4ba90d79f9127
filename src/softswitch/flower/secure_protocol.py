"""SecureAggregation: that the server is to see sums of directions only, and of how many clients at least."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord

from softswitch.flower import messages as wire
from softswitch.flower.codec import from_vector, to_vector
from softswitch.support import checks

ROUNDING = 0.99
"""An effective number is compared with this tolerance: weights are rounded."""


@dataclass(frozen=True, kw_only=True)
class SecureAggregation:
    """For ``SwitchingStrategy(rule, clip_norm=…, secure=SecureAggregation())``: clients mask their directions.

    Each client multiplies its direction by its own weight, which the server tells to all, and adds masks that cancel in
    the sum. The server sees the sum only. The numbers that clients report stay visible: the switch needs them.

    A sum hides a client only among others that weigh something: so nobody weighs more than 1/``min_clients``, whoever
    would is held there, and the effective number of clients, (Σ r_i)²/Σ r_i², is at least ``min_clients``; a round in
    which it is not is void. Clients are lost from a sum, and not weighed again: it is divided by the weight that is
    left.

    Attributes:
        min_clients: the effective number of clients in a sum, at least.
        min_weight: the share of the weight that must be left where clients are lost; with less the round is void.
        threshold: the share of the clients in a round, above one half, that must be there to take the masks off. So
            many must work together with a server that keeps to the protocol to see another's direction. Where clients
            sign their keys more must be there: see ``shares``.
    """

    min_clients: int = 5
    min_weight: float = 0.5
    threshold: float = 0.5

    def __post_init__(self) -> None:
        checks.whole_number("min_clients", self.min_clients, at_least=2)
        checks.real_number("min_weight", self.min_weight, above=0, at_most=1)
        checks.real_number("threshold", self.threshold, at_least=0.5)
        if self.threshold >= 1:
            raise ValueError(f"threshold must be below 1, but is {self.threshold}")

    @property
    def max_weight(self) -> float:
        """What a client weighs, at most."""
        return 1 / self.min_clients

    def required_shares(self, clients: int, *, signed: bool = False) -> int:
        """How many of these clients must be there to take the masks off.

        Args:
            clients: how many are summed.
            signed: whether they sign their keys: then also a server that lies about who arrived is to see no sum of
                fewer than ``min_clients``.
        """
        enough = int(self.threshold * clients) + 1
        return min(clients, max(enough, malicious_server_threshold(clients, self.min_clients)) if signed else enough)


def malicious_server_threshold(clients: int, least: int) -> int:
    """How many of n clients must share a mask, t, such that lies about who arrived show no sum of fewer than s.

    A server may say to each client something else. To see the sum over a set S it needs, of each i in S, t shares of
    its own mask, and the masks that i has in common with those outside: each told by i, where i was told that the other
    is lost, or by the other. Whoever tells its share of i's mask does not tell the common one: so i must have told it,
    and i tells at most n − t, those lost by what it was told. With all of S that is n − t + |S| shares at most; they
    are fewer than t where |S| < 2t − n. So t = (n + s)/2, rounded up, is enough.

    Args:
        clients: n.
        least: s.
    """
    return (clients + least + 1) // 2


def effective_clients(weights: Iterable[float]) -> float:
    """How many clients of equal weight would count as much: (Σ r_i)²/Σ r_i²; 0 where nobody weighs anything.

    Args:
        weights: of the clients.
    """
    own = [float(weight) for weight in weights]
    squares = sum(weight**2 for weight in own)
    return sum(own) ** 2 / squares if squares else 0.0


def has_enough_clients(weights: Iterable[float], least: float) -> bool:
    """Whether the effective number of clients is as large as it should be, but for rounding.

    Args:
        weights: of the clients.
        least: the number that it should be.
    """
    return effective_clients(weights) >= ROUNDING * least


UNITS = 2**30
"""As many stand for the largest entry that a weighted sum can have: half of what fits, so that nothing runs over."""


def quantize(direction: Mapping[str, np.ndarray], weight: float, limit: float) -> np.ndarray:
    """A weighted direction, each entry rounded to the nearest unit; negative ones count down from 2³².

    Args:
        direction: whose norm is at most the limit.
        weight: the client's; all clients' sum to 1 at most.
        limit: the largest norm.
    """
    scaled = to_vector(direction).astype(np.float64) * (weight * UNITS / limit)
    return np.rint(scaled).astype(np.int64).astype(np.uint32)


def dequantize(total: np.ndarray, limit: float, like: Mapping[str, wire.ArraySpec]) -> wire.Arrays:
    """A sum of such numbers as arrays.

    Args:
        total: the sum, without masks.
        limit: the largest norm.
        like: the arrays' shapes.
    """
    wide = {name: wire.ArraySpec(shape.shape, "float64") for name, shape in like.items()}
    return from_vector(total.astype(np.uint32).view(np.int32).astype(np.float64) * (limit / UNITS), wide)


SEED_BYTES = 32
"""Of the key of a mask."""


def generate_key_pair() -> tuple[bytes, bytes]:
    """A private and a public key, for one round."""
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes, public_key_to_bytes

    private, public = generate_key_pairs()
    return private_key_to_bytes(private), public_key_to_bytes(public)


def derive_shared_secrets(private: bytes, publics: Mapping[int, bytes]) -> dict[int, bytes]:
    """What only the owner of a key and each of some others know, or raise ValueError.

    Args:
        private: one's own key.
        publics: the others'.
    """
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
    from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

    own = bytes_to_private_key(private)
    return {place: generate_shared_key(own, bytes_to_public_key(public)) for place, public in publics.items()}


def is_public_key(public: bytes) -> bool:
    """Whether these bytes are a public key of the kind used here.

    Args:
        public: the bytes.
    """
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key

    try:
        bytes_to_public_key(public)
    except (ValueError, TypeError):
        return False
    return True


def derive_key(secret: bytes, purpose: bytes, terms: bytes) -> bytes:
    """A key of its own for each purpose and each round's terms.

    Args:
        secret: what two clients know.
        purpose: what it is for.
        terms: a digest of all that those who are summed must agree on.
    """
    return hmac.new(secret, purpose + b":" + terms, hashlib.sha256).digest()


def derive_share_key(secret: bytes, sender: int, receiver: int, terms: bytes) -> bytes:
    """The key of one letter: a server that carries it back to its sender must not have it read there.

    Args:
        secret: what sender and receiver know.
        sender: whose letter, by its place in the terms.
        receiver: to whom, likewise.
        terms: their digest.
    """
    return derive_key(secret, b"letter %d to %d" % (sender, receiver), terms)


def generate_mask(seed: bytes, numbers: int) -> np.ndarray:
    """So many numbers below 2³² that nobody can tell from chance without the seed.

    Args:
        seed: 32 bytes.
        numbers: how many.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(4 * numbers)), "<u4")


def encrypt(seed: bytes, letter: bytes) -> bytes:
    """A letter that only who has the seed can read.

    Args:
        seed: 32 bytes.
        letter: what to write.
    """
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt

    return encrypt(base64.urlsafe_b64encode(seed), letter)


def decrypt(seed: bytes, letter: bytes) -> bytes:
    """What a letter says, or raise ValueError.

    Args:
        seed: 32 bytes.
        letter: as it came.
    """
    from cryptography.fernet import InvalidToken
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt

    try:
        return decrypt(base64.urlsafe_b64encode(seed), letter)
    except (InvalidToken, TypeError) as error:
        raise ValueError("a letter was changed, or is not for this client") from error


def split_secret(secret: bytes, enough: int, many: int) -> list[bytes]:
    """A secret in shares, none of which tells anything of it by itself.

    Args:
        secret: what to share.
        enough: so many of them tell all of it.
        many: how many there are.
    """
    from flwr.common.secure_aggregation.crypto.shamir import create_shares

    return create_shares(secret, enough, many)


def combine_shares(shares: list[bytes]) -> bytes:
    """The secret again, or raise ValueError.

    Args:
        shares: enough of them.
    """
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares

    try:
        return combine_shares(shares)
    except (IndexError, TypeError, OverflowError) as error:
        raise ValueError("the shares do not go together") from error


ROUND_KEY, MASKED, SHARES, UNMASKING = "round_key", "masked", "encrypted_shares", "unmasking"
"""The names of records in messages."""
MOST_IN_A_SUM, LONGEST_KEY, MAX_SHARE_BYTES = 10_000, 1_000, 1_000
"""What may be told, at most: clients, and bytes of a key or a letter."""


class AggregationTerms(NamedTuple):
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


def parse_terms(record: Any) -> AggregationTerms:
    """The terms that the server told, or raise.

    Args:
        record: as it came.
    """
    if not isinstance(record, ConfigRecord):
        raise wire.InvalidMessageError("there are no terms of a sum")
    told: dict[str, Any] = dict(record)
    names, keys, weights = (told.get(name) for name in ("names", "keys", "weights"))
    signatures = told.get("signatures")
    lists = (names, str), (keys, bytes), (weights, float), (signatures, bytes)
    if not all(isinstance(own, list) and all(isinstance(one, kind) for one in own) for own, kind in lists):
        raise wire.InvalidMessageError("its terms of a sum are not lists of names, keys and weights")
    assert isinstance(names, list) and isinstance(keys, list)  # noqa: PT018
    assert isinstance(weights, list) and isinstance(signatures, list)  # noqa: PT018
    many = len(names)
    if not 2 <= many <= MOST_IN_A_SUM or not len(keys) == len(weights) == len(set(names)) == len(set(keys)) == many:
        raise wire.InvalidMessageError(
            "its terms of a sum must have one name, key and weight for each of several clients"
        )
    if len(signatures) not in (0, many) or max(map(len, keys)) > LONGEST_KEY:
        raise wire.InvalidMessageError("its terms of a sum have other signatures than keys, or keys too long")
    if not all(0 <= weight <= 1 for weight in weights) or not 0 < sum(weights) < 1.001:
        raise wire.InvalidMessageError("its weights must lie between 0 and 1 and sum to 1 at most")
    limit, shares = wire.read_float(told, "limit"), wire.read_int(told, "shares", many)
    if limit <= 0 or 2 * shares <= many:
        raise wire.InvalidMessageError("its limit must be above 0, and more than half of the clients must share a mask")
    return AggregationTerms(wire.read_int(told, "round", 2**63 - 1), names, keys, weights, shares, limit, signatures)


def parse_key(content: Any) -> tuple[bytes, bytes]:
    """A client's key for the round, and its signature or nothing; or raise.

    Args:
        content: of its report.
    """
    record = content.get(ROUND_KEY)
    if not isinstance(record, ConfigRecord):
        raise wire.InvalidMessageError(
            "it tells no key to mask its direction by; is its softswitch older than the server's?"
        )
    key, signature = record.get("key"), record.get("signature", b"")
    if not isinstance(key, bytes) or len(key) > LONGEST_KEY or not is_public_key(key):
        raise wire.InvalidMessageError("its key for the round is none")
    if not isinstance(signature, bytes) or len(signature) > LONGEST_KEY:
        raise wire.InvalidMessageError("its signature of the key for the round is none")
    return key, signature
