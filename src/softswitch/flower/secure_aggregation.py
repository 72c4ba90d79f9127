"""Secure aggregation: the server learns the weighted sum of the clients' directions and no single direction.

Each client adds two kinds of masks to its direction: one of its own, shared among all clients by Shamir's scheme, and
one in common with each other client, which cancels in the sum. For every other client it reveals either a share of that
client's own mask, if its direction arrived, or the common mask, if it did not. It never reveals both, which would
unmask a single direction. A round key serves for one direction and one reply about masks.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.secure_aggregation.crypto import shamir, symmetric_encryption
from flwr.supercore.primitives import asymmetric

from softswitch.flower import messages as wire
from softswitch.flower.compression import from_vector, to_vector
from softswitch.flower.local_client import RefusalError, refuse_unless
from softswitch.flower.membership import find_keys, parse_allow_list
from softswitch.flower.messages import NoReply, Reply, check_reply, log_event, require
from softswitch.results.events import EventLog
from softswitch.support import checks

logger = logging.getLogger("softswitch.flower")
WEIGHT_TOLERANCE, NORM_SLACK = 0.99, 1.001
"""Tolerances for rounding, as factors: of effective numbers of clients, and of the norm of a mean direction."""
UNITS = 2**30
"""The integer that represents the largest possible entry of a weighted sum: half of the range, to avoid overflow."""
SEED_BYTES = 32
MIN_CLIENTS = 2  # a sum of fewer clients hides none of them
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
    """

    min_clients: int = 5
    min_weight: float = 0.5

    def __post_init__(self) -> None:
        checks.check_integer("min_clients", self.min_clients, minimum=2)
        checks.check_real("min_weight", self.min_weight, above=0, maximum=1)

    def _required_shares(self, clients: int, *, signed: bool) -> int:
        """Return the number of clients that must respond to remove the masks: more than half.

        As many clients must collude with a server that follows the protocol to reveal another client's direction. With
        signed keys, even a server that lies about who responded obtains no sum of fewer than ``min_clients``.
        """
        lying = malicious_server_threshold(clients, self.min_clients) if signed else 0
        return min(clients, max(clients // 2 + 1, lying))


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


def _has_enough_clients(weights: Iterable[float], min_clients: float) -> bool:
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


def derive_key(secret: bytes, purpose: bytes, digest: bytes) -> bytes:
    """Return a separate key for each purpose and each round's terms."""
    return hmac.new(secret, purpose + b":" + digest, hashlib.sha256).digest()


def derive_share_key(secret: bytes, sender: int, receiver: int, digest: bytes) -> bytes:
    """Return the key of one share; the direction is included, so that a share sent back cannot be decrypted."""
    return base64.urlsafe_b64encode(derive_key(secret, b"share %d to %d" % (sender, receiver), digest))


def generate_mask(seed: bytes, size: int) -> np.ndarray:
    """Return pseudorandom numbers below 2³² from a seed of 32 bytes."""
    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(4 * size)), "<u4")


def decrypt(key: bytes, share: Any) -> bytes:
    """Return a decrypted share, or nothing if it is unreadable: the shares of other clients may suffice."""
    try:
        return symmetric_encryption.decrypt(key, share)
    except (InvalidToken, TypeError, ValueError):
        return b""


def combine_shares(shares: list[bytes]) -> bytes:
    """Return the secret of Shamir shares, or raise ValueError."""
    try:
        return shamir.combine_shares(shares)
    except (IndexError, TypeError, OverflowError) as error:
        raise ValueError("the shares do not belong together") from error


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
        listed = parse_allow_list(self.clients if isinstance(self.clients, Mapping) else find_keys(self.clients))
        return {name: serialization.load_pem_public_key(key.encode()) for name, key in listed.items()}

    def _sign(self, name: str, run: int, round_: int, key: bytes) -> bytes:
        signature: bytes = self._private.sign(_signed_text(name, run, round_, key), *_signature_scheme(self._private))
        return signature

    def _verify(self, terms: AggregationTerms, run: int, place: int) -> None:
        """Raise ``RefusalError`` if a key of the terms, other than that at ``place``, is not signed by its owner."""
        for other, name in enumerate(terms.names):
            if other == place:
                continue
            public: Any = self._publics.get(name)
            refuse_unless(public is not None, f"{name!r} is in the sum, but not in its list of clients")
            refuse_unless(terms.signatures, "the keys of the other clients are not signed, but it requires signed keys")
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


# ---- messages


class AggregationTerms(NamedTuple):
    """The terms of one round's sum. Masks depend on their digest and cancel only if all clients have the same terms.

    Each client has a name, a public key for the round and a weight r_i. ``shares`` clients must respond to remove the
    masks, and ``limit`` is the largest norm of a direction. Signatures may be empty and are not part of the digest.
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
        """Return a hash of everything that must be the same for all clients; ``repr`` is exact for these types."""
        return hashlib.sha256(repr(tuple(self[:-1])).encode()).digest()


def parse_terms(record: Any) -> AggregationTerms:
    """Return the terms from the server, or raise ``InvalidMessageError``."""
    require(isinstance(record, ConfigRecord), "it contains no terms of secure aggregation")
    terms, kinds = dict(record), {"names": str, "keys": bytes, "weights": float, "signatures": bytes}
    names, keys, weights, signatures = (_read_list(terms, name, kind) for name, kind in kinds.items())
    clients = len(names)
    distinct = len(keys) == len(weights) == len(set(names)) == len(set(keys)) == clients
    problem = "its terms must have one name, key and weight for each of at least two clients"
    require(2 <= clients <= MAX_CLIENTS and distinct, problem)
    problem = f"its terms must have no signature or one for each key, and keys of at most {MAX_KEY_BYTES:,} bytes"
    require(len(signatures) in (0, clients) and max(map(len, keys)) <= MAX_KEY_BYTES, problem)
    valid_weights = all(0 <= weight <= 1 for weight in weights) and 0 < sum(weights) < 1.001
    require(valid_weights, "its weights must be between 0 and 1 with a sum of at most 1")
    limit, shares = wire.read(terms, "limit", float), wire.read(terms, "shares", int, clients)
    problem = "its limit must be positive, and its shares more than half of the clients"
    require(limit > 0 and 2 * shares > clients, problem)
    return AggregationTerms(wire.read(terms, "round", int), names, keys, weights, shares, limit, signatures)


def _read_list(record: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    entries = record.get(name)
    valid = isinstance(entries, list) and all(isinstance(entry, kind) for entry in entries)
    require(valid, f"it must contain a list of {name}")
    return list(entries or ())


def parse_key(content: RecordDict) -> tuple[bytes, bytes]:
    """Return a client's public key for the round and its signature, which may be empty."""
    missing = "it contains no key for secure aggregation; upgrade softswitch at the client"
    record: Any = wire.get_config(content, ROUND_KEY, missing)
    key, signature = (record.get(name, b"") for name in ("key", "signature"))
    for data in (key, signature):
        is_short = isinstance(data, bytes) and len(data) <= MAX_KEY_BYTES
        require(is_short, f"its key and signature for the round must have at most {MAX_KEY_BYTES:,} bytes")
    try:
        asymmetric.bytes_to_public_key(key)
    except (ValueError, TypeError) as error:
        raise wire.InvalidMessageError("its key for the round is not a public key") from error
    return key, signature


# ---- the client's part; its state is in Flower's context


def create_round_key(round_: int, name: str, context: Context, signing_keys: SigningKeys | None) -> ConfigRecord:
    """Create the client's key for a round, and return the record that is sent with its report."""
    private, public = generate_key_pair()
    context.state[ROUND_KEY] = ConfigRecord({"round": round_, "private": private, "public": public})
    for outdated in (TERMS, SHARES):
        context.state.pop(outdated, None)
    record = ConfigRecord({"key": public})
    if signing_keys is not None:
        record["signature"] = signing_keys._sign(name, context.run_id, round_, public)
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
    has_sent = TERMS in context.state
    refuse_unless(not has_sent, "it has already sent its direction of this round; a key masks one direction only")
    is_listed = key["public"] in terms.keys and terms.names[terms.keys.index(key["public"])] == name
    require(is_listed, "its terms do not contain this client's name and key")
    place, clients = terms.keys.index(key["public"]), len(terms.names)
    min_clients = max(min_clients, MIN_CLIENTS)
    _check_effective_clients(terms.weights, min_clients)
    weight = terms.weights[place] / sum(terms.weights)  # many light clients could hide a heavy one
    is_light = weight * WEIGHT_TOLERANCE * min_clients <= 1
    refuse_unless(is_light, f"it would have {weight:.0%} of the weight in the sum, but accepts at most 1/{min_clients}")
    if signing_keys is not None:
        signing_keys._verify(terms, context.run_id, place)
        required = min(clients, malicious_server_threshold(clients, min_clients))
        problem = f"{terms.shares} of {clients} clients can remove the masks, but it requires {required}"
        refuse_unless(terms.shares >= required, problem)
    refuse_unless(all(np.isfinite(part).all() for part in direction.values()), "its direction contains NaN or infinity")
    secrets, digest, own_seed = _derive_secrets(terms, key, place), terms.digest(), os.urandom(SEED_BYTES)
    total = quantize(direction, terms.weights[place], terms.limit)
    total += generate_mask(own_seed, total.size)
    for other, secret in secrets.items():
        common = generate_mask(derive_key(secret, b"mask", digest), total.size)
        total = total + common if other > place else total - common
    shares = shamir.create_shares(own_seed, terms.shares, clients)
    encrypted = [b""] * clients
    for other, secret in secrets.items():
        share_key = derive_share_key(secret, place, other, digest)
        encrypted[other] = symmetric_encryption.encrypt(share_key, shares[other])
    context.state[TERMS] = terms.record()
    context.state[SHARES] = ConfigRecord({"own": shares[place]})
    return {MASKED: wire.to_record({"sum": total}), SHARES: ConfigRecord({"shares": encrypted})}


def unmask(message: Message, context: Context, min_clients: int) -> ConfigRecord:
    """Return shares of the own masks of clients whose direction arrived, and the common masks with lost clients."""
    request: dict[str, Any] = dict(wire.get_config(message.content, SHARES))
    is_masked = TERMS in context.state and SHARES in context.state
    refuse_unless(is_masked, "it has no masked direction: it was restarted, or has already revealed its masks")
    terms, key = parse_terms(context.state[TERMS]), _get_round_key(context, None)
    place, clients = terms.keys.index(key["public"]), len(terms.names)
    arrived, encrypted = _read_list(request, "arrived", int), _read_list(request, "shares", bytes)
    require(len(arrived) == len(encrypted), "it must list the clients whose directions arrived, with one share of each")
    distinct = len(set(arrived)) == len(arrived) and all(0 <= other < clients for other in arrived)
    require(distinct, "it lists a client that is not in the sum, or one twice")
    counts = f"{len(arrived)} of {clients} directions arrived, but it requires {terms.shares} with its own"
    refuse_unless(place in arrived and len(arrived) >= terms.shares, counts)
    _check_effective_clients([terms.weights[other] for other in arrived], max(min_clients, MIN_CLIENTS))
    secrets, digest = _derive_secrets(terms, key, place), terms.digest()
    state: Any = context.state[SHARES]
    shares = [
        state["own"] if other == place else decrypt(derive_share_key(secrets[other], other, place, digest), share)
        for other, share in zip(arrived, encrypted, strict=True)
    ]
    del context.state[SHARES], context.state[ROUND_KEY]  # before the reply, so that masks are revealed only once
    lost = [derive_key(secrets[other], b"mask", digest) for other in range(clients) if other not in arrived]
    return ConfigRecord({"shares": shares, "masks": lost})


def _get_round_key(context: Context, round_: int | None) -> dict[str, Any]:
    key: Any = context.state.get(ROUND_KEY)
    if not isinstance(key, ConfigRecord) or round_ not in (None, key["round"]):
        raise RefusalError("it lost its key for the round in a restart after its report")
    return dict(key)


def _check_effective_clients(weights: list[float], min_clients: int) -> None:
    effective = f"the effective number of clients in the sum is {effective_clients(weights):.2f}"
    refuse_unless(_has_enough_clients(weights, min_clients), f"{effective}, but it requires {min_clients}")


def _derive_secrets(terms: AggregationTerms, key: dict[str, Any], place: int) -> dict[int, bytes]:
    """Return the secret in common with each other client, by place."""
    private = asymmetric.bytes_to_private_key(key["private"])
    try:
        return {
            other: symmetric_encryption.generate_shared_key(private, asymmetric.bytes_to_public_key(public))
            for other, public in enumerate(terms.keys)
            if other != place
        }
    except ValueError as error:
        raise wire.InvalidMessageError(f"its terms contain an invalid key: {wire.sanitize(str(error))}") from error


# ---- the server's part


class SecureMean(NamedTuple):
    """The weighted mean of directions, Σ r_i u_i / Σ r_i, and the places of the clients in it."""

    places: list[int]
    mean: wire.Arrays


MaskedUpdate = tuple[np.ndarray, list[bytes]]
"""A client's masked weighted direction, as integers below 2³², and its encrypted shares for each client."""


class SecureAggregator:
    """Secure aggregation of the directions of one run."""

    def __init__(
        self, secure: SecureAggregation, clip_norm: float, shapes: Mapping[str, wire.ArraySpec], events: EventLog
    ) -> None:
        self._secure, self._clip_norm, self._shapes, self._events = secure, clip_norm, shapes, events
        self._size = sum(math.prod(shape.shape) for shape in shapes.values())
        self._places: list[int] = []

    def begin_round(
        self, k: int, names: Mapping[int, str], reports: Mapping[int, Any], weights: np.ndarray
    ) -> AggregationTerms | None:
        """Return the terms of a round for the clients in ``names``, by place; None if too few hide each other.

        ``reports`` are the clients' messages with the public keys, by place.
        """
        self._places = list(names)
        used = [float(weights[place]) for place in self._places]
        if len(used) < 2 or not _has_enough_clients(used, self._secure.min_clients):
            self._log_void(k, f"the effective number of clients would be {effective_clients(used):.2f}")
            return None
        keys, signatures = zip(*(parse_key(reports[place].content) for place in self._places), strict=True)
        signed = list(signatures) if all(signatures) else []
        threshold = self._secure._required_shares(len(used), signed=bool(signed))
        self._terms = AggregationTerms(k, list(names.values()), list(keys), used, threshold, self._clip_norm, signed)
        return self._terms

    def read_update(self, content: RecordDict) -> MaskedUpdate:
        """Return the masked update in a client's reply, or raise ``InvalidMessageError``."""
        expected = {"sum": wire.ArraySpec((self._size,), "uint32")}
        numbers = wire.parse_arrays(content.get(MASKED), expected)["sum"]
        letters, clients = _read_list(wire.get_config(content, SHARES), "shares", bytes), len(self._places)
        valid = len(letters) == clients and all(len(letter) <= MAX_SHARE_BYTES for letter in letters)
        require(valid, f"it must send {clients} letters to clients of at most {MAX_SHARE_BYTES} bytes each")
        return numbers, letters

    def aggregate(
        self, k: int, updates: Mapping[int, MaskedUpdate], ask: Callable[[dict[int, RecordDict]], Mapping[int, Reply]]
    ) -> SecureMean | None:
        """Return the weighted mean direction; None, with a warning, if the masks cannot be removed.

        ``ask`` sends a message to each of these clients, by place, and returns their replies.
        """
        terms, places, secure, limit = self._terms, self._places, self._secure, self._clip_norm
        arrived = [i for i, place in enumerate(places) if place in updates]
        weights = [terms.weights[i] for i in arrived]
        share, counts = sum(weights) / sum(terms.weights), f"{len(arrived)} of {len(places)} directions came"
        try:
            is_enough = len(arrived) >= terms.shares and share >= secure.min_weight
            require(is_enough, f"{counts}, with {share:.0%} of the weight")
            problem = f"the effective number of clients is {effective_clients(weights):.2f}"
            require(_has_enough_clients(weights, secure.min_clients), problem)
            letters = {places[i]: [updates[places[j]][1][i] for j in arrived] for i in arrived}
            requests = {i: ConfigRecord({"arrived": arrived, "shares": shares}) for i, shares in letters.items()}
            replies = ask({place: RecordDict({SHARES: request}) for place, request in requests.items()})
            unmasking = {i: self._read_unmasking(i, replies[places[i]], arrived) for i in arrived}
            total = np.sum([updates[places[i]][0] for i in arrived], axis=0, dtype=np.uint32)
            total -= self._total_mask(arrived, {i: sent for i, sent in unmasking.items() if sent is not None})
            mean = {name: part / sum(weights) for name, part in dequantize(total, limit, self._shapes).items()}
            norm = math.sqrt(sum(float(np.square(part).sum()) for part in mean.values()))
            rounding = len(arrived) * limit / UNITS / sum(weights)
            is_short = norm <= NORM_SLACK * limit + self._size**0.5 * rounding
            require(is_short, f"the mean has norm {norm:.3g}, above clip_norm={limit:g}")
        except wire.InvalidMessageError as reason:
            self._log_void(k, str(reason))
            return None
        return SecureMean([places[i] for i in arrived], mean)

    def _total_mask(self, arrived: list[int], unmasking: Mapping[int, tuple[list[bytes], list[bytes]]]) -> np.ndarray:
        """Return the sum of the masks left in the total: each client's own, and those shared with lost clients."""
        terms, total = self._terms, np.zeros(self._size, np.uint32)
        for position, i in enumerate(arrived):
            shares = [sent[position] for sent, _ in unmasking.values() if sent[position]]
            counts = f"{len(shares)} shares of the mask of {terms.names[i]!r} came, {terms.shares} are needed"
            require(len(shares) >= terms.shares, counts)
            try:
                total += generate_mask(combine_shares(shares[: terms.shares]), self._size)
            except ValueError:
                raise wire.InvalidMessageError(f"the shares of the mask of {terms.names[i]!r} do not match") from None
        lost = [i for i in range(len(terms.names)) if i not in arrived]
        for i in arrived if lost else ():
            require(i in unmasking, f"{terms.names[i]!r} does not send the masks that it shares with lost clients")
            for other, seed in zip(lost, unmasking[i][1], strict=True):
                shared = generate_mask(seed, self._size)
                total = total + shared if other > i else total - shared
        return total

    def _read_unmasking(self, i: int, reply: Reply, arrived: list[int]) -> tuple[list[bytes], list[bytes]] | None:
        """Return a client's shares of own masks, and its masks in common with lost clients; None if it sends none."""
        name, lost = self._terms.names[i], len(self._terms.names) - len(arrived)
        try:
            content = check_reply(reply)
            record = wire.get_config(content, UNMASKING, "its shares or masks are missing")
            shares, masks = _read_list(record, "shares", bytes), _read_list(record, "masks", bytes)
            require(len(shares) == len(arrived) and len(masks) == lost, "its shares or masks are malformed")
            require(all(len(mask) == SEED_BYTES for mask in masks), f"its masks must have {SEED_BYTES} bytes")
        except (NoReply, wire.InvalidMessageError) as error:
            what, why = "lost" if isinstance(error, NoReply) else "refused", f"masks are not removed: {error}"
            log_event(self._events, what, why, client=name)
            return None
        return shares, masks

    def _log_void(self, k: int, reason: str) -> None:
        logger.warning("round %d: directions are not aggregated: %s", k, reason)
        self._events.record("not aggregated", reason)
