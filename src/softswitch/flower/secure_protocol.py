"""Secure aggregation: its settings, its cryptography and its messages, for server and clients."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from flwr.app import ConfigRecord
from flwr.common.secure_aggregation.crypto import shamir, symmetric_encryption
from flwr.supercore.primitives import asymmetric

from softswitch.flower import messages as wire
from softswitch.flower.compression import from_vector, to_vector
from softswitch.support import checks

WEIGHT_TOLERANCE = 0.99
"""Effective numbers of clients are compared with this factor, because weights are rounded."""
UNITS = 2**30
"""The integer that represents the largest possible entry of a weighted sum: half of the range, to avoid overflow."""
SEED_BYTES = 32
MAX_CLIENTS, MAX_KEY_BYTES, MAX_SHARE_BYTES = 10_000, 1_000, 1_000
TERMS, ROUND_KEY, MASKED = "terms", "round_key", "masked"
SHARES, UNMASKING = "encrypted_shares", "unmasking"
"""The names of records in messages and in a client's context. ``MASKED`` is also a setting of the round."""


@dataclass(frozen=True, kw_only=True)
class SecureAggregation:
    """Secure aggregation, as in ``SwitchingStrategy(method, clip_norm=1.0, secure=SecureAggregation())``.

    Each client multiplies its direction by its weight, which all clients know, and adds masks that cancel in the sum.
    The server learns only the sum of directions. It still sees the values that clients report, because the switch needs
    them.

    A client is hidden only among others with a positive weight. Weights are therefore capped at 1/``min_clients``, and
    a round is void if the effective number of clients, (Σ r_i)²/Σ r_i², is below ``min_clients``. If clients are lost,
    the sum is divided by the remaining weight.

    Attributes:
        min_clients: Minimum effective number of clients in a sum.
        min_weight: Minimum share of the weight that must remain after clients are lost; otherwise the round is void.
        threshold: Share of the clients in a round, at least one half, that must be exceeded to remove the masks. As
            many clients must collude with a server that follows the protocol to reveal another client's direction.
            Signed keys raise this number; see ``required_shares``.
    """

    min_clients: int = 5
    min_weight: float = 0.5
    threshold: float = 0.5

    def __post_init__(self) -> None:
        checks.check_integer("min_clients", self.min_clients, minimum=2)
        checks.check_real("min_weight", self.min_weight, above=0, maximum=1)
        checks.check_real("threshold", self.threshold, minimum=0.5)
        if self.threshold >= 1:
            raise ValueError(f"threshold must be below 1, but is {self.threshold}")

    @property
    def max_weight(self) -> float:
        """The maximum weight of a client."""
        return 1 / self.min_clients

    def required_shares(self, clients: int, *, signed: bool = False) -> int:
        """Return the number of clients that must respond to remove the masks.

        Args:
            clients: Number of clients in the sum.
            signed: Whether keys are signed. Then even a server that lies about who responded cannot obtain a sum of
                fewer than ``min_clients``.
        """
        shares = int(self.threshold * clients) + 1
        if signed:
            shares = max(shares, malicious_server_threshold(clients, self.min_clients))
        return min(clients, shares)


def malicious_server_threshold(clients: int, min_clients: int) -> int:
    """Return the number t of shares such that a lying server obtains no sum of fewer than s of n clients.

    A server may name different lost clients to each client. For the sum over a set S it needs t shares of the own mask
    of each i in S, and the masks that i has in common with clients outside S. A client that reveals its share of i's
    own mask does not reveal the common one, so i must reveal it, and i reveals at most n − t. With all of S the server
    obtains at most n − t + |S| shares, which are fewer than t if |S| < 2t − n. Hence t = ⌈(n + s)/2⌉ suffices.
    """
    return (clients + min_clients + 1) // 2


def effective_clients(weights: Iterable[float]) -> float:
    """Return the effective number of clients, (Σ r_i)²/Σ r_i², or 0 if all weights are 0."""
    values = [float(weight) for weight in weights]
    squares = sum(weight**2 for weight in values)
    return sum(values) ** 2 / squares if squares else 0.0


def has_enough_clients(weights: Iterable[float], min_clients: float) -> bool:
    """Return whether the effective number of clients is at least ``min_clients``, up to rounding."""
    return effective_clients(weights) >= WEIGHT_TOLERANCE * min_clients


def quantize(direction: Mapping[str, np.ndarray], weight: float, limit: float) -> np.ndarray:
    """Return a weighted direction of norm at most ``limit`` as integers modulo 2³²."""
    scaled = to_vector(direction).astype(np.float64) * (weight * UNITS / limit)
    return np.rint(scaled).astype(np.int64).astype(np.uint32)


def dequantize(total: np.ndarray, limit: float, specs: Mapping[str, wire.ArraySpec]) -> wire.Arrays:
    """Return the arrays of an unmasked sum."""
    wide = {name: wire.ArraySpec(spec.shape, "float64") for name, spec in specs.items()}
    return from_vector(total.astype(np.uint32).view(np.int32).astype(np.float64) * (limit / UNITS), wide)


# ---- cryptography


def generate_key_pair() -> tuple[bytes, bytes]:
    """Return a private and a public key for one round."""
    private, public = asymmetric.generate_key_pairs()
    return asymmetric.private_key_to_bytes(private), asymmetric.public_key_to_bytes(public)


def derive_shared_secrets(private: bytes, publics: Mapping[int, bytes]) -> dict[int, bytes]:
    """Return the secret in common with the owner of each public key, or raise ValueError."""
    key = asymmetric.bytes_to_private_key(private)
    return {
        place: symmetric_encryption.generate_shared_key(key, asymmetric.bytes_to_public_key(public))
        for place, public in publics.items()
    }


def is_public_key(data: bytes) -> bool:
    """Return whether these bytes are a public key for a round."""
    try:
        asymmetric.bytes_to_public_key(data)
    except (ValueError, TypeError):
        return False
    return True


def derive_key(secret: bytes, purpose: bytes, digest: bytes) -> bytes:
    """Return a separate key for each purpose and each round's terms."""
    return hmac.new(secret, purpose + b":" + digest, hashlib.sha256).digest()


def derive_share_key(secret: bytes, sender: int, receiver: int, digest: bytes) -> bytes:
    """Return the key of one share; the direction is included, so that a share sent back cannot be decrypted."""
    return derive_key(secret, b"share %d to %d" % (sender, receiver), digest)


def generate_mask(seed: bytes, size: int) -> np.ndarray:
    """Return pseudorandom numbers below 2³² from a seed of 32 bytes."""
    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(4 * size)), "<u4")


def encrypt(key: bytes, data: bytes) -> bytes:
    """Return data encrypted with a key of 32 bytes."""
    return symmetric_encryption.encrypt(base64.urlsafe_b64encode(key), data)


def decrypt(key: bytes, data: bytes) -> bytes:
    """Return decrypted data, or raise ValueError."""
    try:
        return symmetric_encryption.decrypt(base64.urlsafe_b64encode(key), data)
    except (InvalidToken, TypeError) as error:
        raise ValueError("a share was modified or is for another client") from error


def combine_shares(shares: list[bytes]) -> bytes:
    """Return the secret of Shamir shares, or raise ValueError."""
    try:
        return shamir.combine_shares(shares)
    except (IndexError, TypeError, OverflowError) as error:
        raise ValueError("the shares do not belong together") from error


# ---- messages


class AggregationTerms(NamedTuple):
    """The terms of one round's sum. Masks depend on their digest and cancel only if all clients have the same terms.

    Attributes:
        round: The round k.
        names: The clients' names.
        keys: The clients' public keys for this round.
        weights: The clients' weights r_i.
        shares: Number of clients that must respond to remove the masks.
        limit: The largest norm of a direction.
        signatures: The signatures of the keys, or empty. They are not part of the digest.
    """

    round: int
    names: list[str]
    keys: list[bytes]
    weights: list[float]
    shares: int
    limit: float
    signatures: list[bytes]

    def record(self) -> ConfigRecord:
        """Return the terms as a record."""
        return ConfigRecord(self._asdict())

    def digest(self) -> bytes:
        """Return a hash of everything that must be the same for all clients."""
        result = hashlib.sha256(struct.pack("<qqqd", self.round, len(self.names), self.shares, self.limit))
        for name, key, weight in zip(self.names, self.keys, self.weights, strict=True):
            for part in (name.encode(), key, struct.pack("<d", weight)):
                result.update(struct.pack("<q", len(part)) + part)
        return result.digest()


def parse_terms(record: Any) -> AggregationTerms:
    """Return the terms from the server, or raise ``InvalidMessageError``."""
    if not isinstance(record, ConfigRecord):
        raise wire.InvalidMessageError("it contains no terms of secure aggregation")
    terms: dict[str, Any] = dict(record)
    types = {"names": str, "keys": bytes, "weights": float, "signatures": bytes}
    for name, kind in types.items():
        if not isinstance(terms.get(name), list) or not all(isinstance(entry, kind) for entry in terms[name]):
            raise wire.InvalidMessageError(f"its terms must contain a list of {name}")
    names, keys, weights, signatures = (terms[name] for name in types)
    clients = len(names)
    if not 2 <= clients <= MAX_CLIENTS or not len(keys) == len(weights) == len(set(names)) == len(set(keys)) == clients:
        raise wire.InvalidMessageError("its terms must have one name, key and weight for each of at least two clients")
    if len(signatures) not in (0, clients) or max(map(len, keys)) > MAX_KEY_BYTES:
        raise wire.InvalidMessageError(
            f"its terms must have no signature or one for each key, and keys of at most {MAX_KEY_BYTES:,} bytes"
        )
    if not all(0 <= weight <= 1 for weight in weights) or not 0 < sum(weights) < 1.001:
        raise wire.InvalidMessageError("its weights must be between 0 and 1 with a sum of at most 1")
    limit, shares = wire.read_float(terms, "limit"), wire.read_int(terms, "shares", clients)
    if limit <= 0 or 2 * shares <= clients:
        raise wire.InvalidMessageError("its limit must be positive, and its shares more than half of the clients")
    return AggregationTerms(wire.read_int(terms, "round", 2**63 - 1), names, keys, weights, shares, limit, signatures)


def parse_key(content: Any) -> tuple[bytes, bytes]:
    """Return a client's public key for the round and its signature, which may be empty."""
    record = content.get(ROUND_KEY)
    if not isinstance(record, ConfigRecord):
        raise wire.InvalidMessageError("it contains no key for secure aggregation; upgrade softswitch at the client")
    key, signature = record.get("key"), record.get("signature", b"")
    if not isinstance(key, bytes) or len(key) > MAX_KEY_BYTES or not is_public_key(key):
        raise wire.InvalidMessageError("its key for the round is not a public key")
    if not isinstance(signature, bytes) or len(signature) > MAX_KEY_BYTES:
        raise wire.InvalidMessageError(f"its signature must be at most {MAX_KEY_BYTES:,} bytes")
    return key, signature
