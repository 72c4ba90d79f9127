"""What two clients alone know, and what is made of it: masks, and letters that the server carries but cannot read.

Key agreement, sealing and secret sharing are Flower's. Its generator of masks is not used: it folds a seed into 32 bits
and draws by the Mersenne Twister, so that whoever has a masked vector could try all seeds. Here masks are the stream of
a cipher (AES in counter mode) under a key of 256 bits. All of it is imported where it is used: few runs are masked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

import numpy as np

SEED_BYTES = 32
"""Of the key of a mask."""


def new_pair() -> tuple[bytes, bytes]:
    """A private and a public key, for one round."""
    from flwr.supercore.primitives.asymmetric import generate_key_pairs, private_key_to_bytes, public_key_to_bytes

    private, public = generate_key_pairs()
    return private_key_to_bytes(private), public_key_to_bytes(public)


def secrets_between(private: bytes, publics: Mapping[int, bytes]) -> dict[int, bytes]:
    """What only the owner of a key and each of some others know, or raise ValueError.

    Args:
        private: one's own key.
        publics: the others'.
    """
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
    from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

    own = bytes_to_private_key(private)
    return {place: generate_shared_key(own, bytes_to_public_key(public)) for place, public in publics.items()}


def is_key(public: bytes) -> bool:
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


def seed_of(secret: bytes, purpose: bytes, terms: bytes) -> bytes:
    """A key of its own for each purpose and each round's terms.

    Args:
        secret: what two clients know.
        purpose: what it is for.
        terms: a digest of all that those who are summed must agree on.
    """
    return hmac.new(secret, purpose + b":" + terms, hashlib.sha256).digest()


def letter_seed(secret: bytes, sender: int, receiver: int, terms: bytes) -> bytes:
    """The key of one letter: a server that carries it back to its sender must not have it read there.

    Args:
        secret: what sender and receiver know.
        sender: whose letter, by its place in the terms.
        receiver: to whom, likewise.
        terms: their digest.
    """
    return seed_of(secret, b"letter %d to %d" % (sender, receiver), terms)


def mask(seed: bytes, numbers: int) -> np.ndarray:
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


def sealed(seed: bytes, letter: bytes) -> bytes:
    """A letter that only who has the seed can read.

    Args:
        seed: 32 bytes.
        letter: what to write.
    """
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt

    return encrypt(base64.urlsafe_b64encode(seed), letter)


def unsealed(seed: bytes, letter: bytes) -> bytes:
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


def shares_of(secret: bytes, enough: int, many: int) -> list[bytes]:
    """A secret in shares, none of which tells anything of it by itself.

    Args:
        secret: what to share.
        enough: so many of them tell all of it.
        many: how many there are.
    """
    from flwr.common.secure_aggregation.crypto.shamir import create_shares

    return create_shares(secret, enough, many)


def from_shares(shares: list[bytes]) -> bytes:
    """The secret again, or raise ValueError.

    Args:
        shares: enough of them.
    """
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares

    try:
        return combine_shares(shares)
    except (IndexError, TypeError, OverflowError) as error:
        raise ValueError("the shares do not go together") from error
