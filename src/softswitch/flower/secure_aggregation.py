"""Secure aggregation: the server learns the weighted sum of the clients' directions and no single direction.

Each two clients have a mask in common, which one adds to its direction and the other subtracts. The masks cancel if the
direction of every client arrives; otherwise the round is void. A round key serves for one direction.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from softswitch.flower import messages as wire
from softswitch.flower.compression import from_vector, to_vector
from softswitch.flower.local_client import RefusalError, refuse_unless
from softswitch.flower.membership import find_keys, parse_allow_list
from softswitch.flower.messages import require
from softswitch.methods.messages import LocalLoss
from softswitch.support import checks

WEIGHT_TOLERANCE, NORM_SLACK = 0.99, 1.001
"""Tolerances for rounding, as factors: of the largest share of a client, and of the norm of a sum."""
UNITS = 2**30
"""The integer that represents the largest possible entry of a weighted sum: half of the range, to avoid overflow."""
MIN_CLIENTS = 2  # a sum of fewer clients hides none of them
MAX_CLIENTS, MAX_SIGNATURE_BYTES, KEY_BYTES = 10_000, 1_000, 32
TERMS, ROUND_KEY, MASKED, COHORT = "terms", "round_key", "masked", "cohort"
"""The names of records in messages and in a client's context. ``MASKED`` is also a setting of the round."""


@dataclass(frozen=True, kw_only=True)
class SecureAggregation:
    """Secure aggregation, as in ``SwitchingStrategy(method, names=names, clip_norm=1.0, secure=SecureAggregation())``.

    It protects single directions against an honest-but-curious server, one that follows the protocol and analyses what
    it receives. It does not protect against a server that deviates from the protocol. It has had no external
    cryptographic review. The server still sees the values that clients report, because the switch needs them.

    All clients of a fixed cohort, the setting ``names`` or ``clients``, must take part in every round, and report on
    all rows. If a direction is lost, the round is void. A client refuses a sum over other clients than in the first sum
    of the run. Many sums with different weights at nearly the same parameters reveal single directions.

    A client is hidden only among others with a positive weight. Weights are therefore capped at 1/``min_clients``, so
    that the effective number of clients, (Σ r_i)²/Σ r_i², is at least ``min_clients``. Otherwise the round is void.

    Attributes:
        min_clients: Minimum effective number of clients in a sum.
    """

    min_clients: int = 5

    def __post_init__(self) -> None:
        checks.check_integer("min_clients", self.min_clients, minimum=MIN_CLIENTS)


def quantize(direction: Mapping[str, np.ndarray], weight: float, limit: float) -> np.ndarray:
    """Return a weighted direction of norm at most ``limit`` as integers modulo 2³²."""
    scaled = to_vector(direction).astype(np.float64) * (weight * UNITS / limit)
    return np.rint(scaled).astype(np.int64).astype(np.uint32)


def dequantize(total: np.ndarray, limit: float, specs: Mapping[str, wire.ArraySpec]) -> wire.Arrays:
    """Return the arrays of a sum."""
    wide = {name: wire.ArraySpec(spec.shape, "float64") for name, spec in specs.items()}
    return from_vector(total.astype(np.uint32).view(np.int32).astype(np.float64) * (limit / UNITS), wide)


def generate_mask(private: X25519PrivateKey, public: bytes, digest: bytes, size: int) -> np.ndarray:
    """Return the mask in common with the owner of a public key: pseudorandom numbers below 2³²."""
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise wire.InvalidMessageError(f"its terms contain an invalid key: {wire.sanitize(str(error))}") from error
    key = HKDF(hashes.SHA256(), length=32, salt=None, info=b"softswitch mask" + digest).derive(secret)
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(4 * size)), "<u4")


@dataclass(frozen=True)
class SigningKeys:
    """Keys that sign the key exchange, as in ``client_app(factory, signing_keys=SigningKeys("node-1", "clients"))``.

    The server forwards the clients' round keys. A client with signing keys signs its round keys, and refuses a sum in
    which another client's key is not signed by its owner.

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

    def _sign(self, *parts: str | int | bytes) -> bytes:
        return bytes(self._private.sign(_signed_text(*parts), *_signature_scheme(self._private)))

    def _verify(self, terms: AggregationTerms, run: int, round_: int) -> None:
        """Raise ``RefusalError`` if a key of the terms is not signed by its owner."""
        refuse_unless(terms.signatures, "the keys of the clients are not signed, but it requires signed keys")
        for name, key, signature in zip(terms.names, terms.keys, terms.signatures, strict=True):
            public: Any = self._publics.get(name)
            refuse_unless(public is not None, f"{name!r} is in the sum, but not in its list of clients")
            try:
                public.verify(signature, _signed_text(name, run, round_, key), *_signature_scheme(public))
            except (InvalidSignature, AttributeError, TypeError):
                raise RefusalError(f"the key of {name!r} for this round is not signed by its owner") from None


def _signature_scheme(key: Any) -> tuple[Any, ...]:
    is_edwards = isinstance(key, ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey)
    return () if is_edwards else (ec.ECDSA(hashes.SHA256()),)


def _signed_text(*parts: str | int | bytes) -> bytes:
    return b"softswitch round key" + repr(parts).encode()


# ---- messages


class AggregationTerms(NamedTuple):
    """The terms of one round's sum, the same for all clients.

    Each client has a name, a public key for the round, a weight r_i and a local loss. ``losses`` has the numbers of
    all local losses in one list: a_i, each b_ic, c and ε. Signatures may be empty.
    """

    names: list[str]
    keys: list[bytes]
    weights: list[float]
    losses: list[float]
    signatures: list[bytes]

    @property
    def _loss_rows(self) -> np.ndarray:
        return np.reshape(self.losses, (len(self.names), -1))

    def local_loss(self, place: int) -> LocalLoss:
        """Return the local loss of one client."""
        constraint: Any = self._loss_rows[place, 1:-2]
        objective, penalty, tolerance = self._loss_rows[place, [0, -2, -1]].tolist()
        return LocalLoss(objective, constraint, penalty, tolerance)

    def check_shares(self, min_clients: int) -> None:
        """Raise ``InvalidMessageError`` if a client has more than 1/``min_clients`` of the sum.

        A share is the client's weight times |a_i| + Σ_c |b_ic|: a client that minimises 0 does not hide another one.
        The penalty does not count, because its gradient may be 0.
        """
        sizes = np.array(self.weights) * np.abs(self._loss_rows[:, :-2]).sum(axis=1)
        share = float(sizes.max() / sizes.sum()) if sizes.any() else 1.0
        problem = f"one client would have {share:.0%} of the sum, but at most 1/{min_clients} is accepted"
        require(share * WEIGHT_TOLERANCE * min_clients <= 1, problem)

    def digest(self, params: ArrayRecord, settings: ConfigRecord) -> bytes:
        """Return a hash, on which masks depend, of all that clients must have in common.

        ``params`` and ``settings`` are those that the client uses. ``repr`` is exact for all other types.
        """
        digest = hashlib.sha256(repr((self[:-1], sorted(settings.items()))).encode())
        for name, array in sorted(params.items()):
            digest.update(repr((name, len(array.data))).encode() + array.data)
        return digest.digest()


def parse_terms(record: Any, constraints: int) -> AggregationTerms:
    """Return the terms from the server, or raise ``InvalidMessageError``."""
    require(isinstance(record, ConfigRecord), "it contains no terms of secure aggregation")
    kinds = {"names": str, "keys": bytes, "weights": float, "losses": float, "signatures": bytes}
    for name, kind in kinds.items():
        entries = record.get(name)
        is_list = isinstance(entries, list) and all(isinstance(entry, kind) for entry in entries)
        require(is_list, f"its terms must contain a list of {name}")
    terms = AggregationTerms(**{name: record[name] for name in kinds})
    clients, numbers = len(terms.names), 3 + constraints
    columns = terms.keys, terms.weights, set(terms.names), set(terms.keys), terms.signatures or terms.names
    is_complete = all(len(column) == clients for column in columns) and MIN_CLIENTS <= clients <= MAX_CLIENTS
    problem = f"its terms must have a name, a key, a weight and {numbers} numbers of each client"
    require(is_complete and len(terms.losses) == clients * numbers, problem)
    is_valid = all(0 <= weight <= 1 for weight in terms.weights) and sum(terms.weights) < 1.001
    require(is_valid, "its weights must be between 0 and 1 with a sum of at most 1")
    wire.check_size("its local loss", terms.losses)
    return terms


# ---- the client's part; its state is in Flower's context


def create_round_key(round_: int, name: str, context: Context, signing_keys: SigningKeys | None) -> ConfigRecord:
    """Create the client's key for a round, and return the record that is sent with its report."""
    private = X25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    context.state[ROUND_KEY] = ConfigRecord({"round": round_, "private": private.private_bytes_raw()})
    signature = b"" if signing_keys is None else signing_keys._sign(name, context.run_id, round_, public)
    return ConfigRecord({"key": public, "signature": signature})


def mask_direction(
    compute: Callable[[LocalLoss], wire.Arrays],
    terms: AggregationTerms,
    name: str,
    params: ArrayRecord,
    settings: ConfigRecord,
    context: Context,
    min_clients: int,
    keys: SigningKeys | None,
) -> dict[str, Any]:
    """Return the record of the client's masked weighted direction, or raise an exception if it must not take part.

    ``compute`` returns the direction of a local loss, of norm at most ``clip_norm``.
    """
    round_, clip_norm = wire.read(settings, "round", int), wire.read(settings, "clip_norm", float)
    key: Any = context.state.pop(ROUND_KEY, None)  # two directions with the same masks would reveal their difference
    problem = "it has no key for the round: it was restarted, or has already sent its direction"
    refuse_unless(isinstance(key, ConfigRecord) and key["round"] == round_, problem)
    private = X25519PrivateKey.from_private_bytes(key["private"])
    public, names = private.public_key().public_bytes_raw(), sorted(terms.names)
    is_listed = (name, public) in zip(terms.names, terms.keys, strict=True) and clip_norm > 0
    require(is_listed, "its terms do not contain this client's name and key, or its clip_norm is not positive")
    terms.check_shares(max(min_clients, MIN_CLIENTS))
    cohort: Any = context.state.get(COHORT, {"names": names})
    refuse_unless(cohort["names"] == names, "the sum has other clients than the first sum of the run")
    if keys is not None:
        keys._verify(terms, context.run_id, round_)
    context.state[COHORT] = ConfigRecord({"names": names})
    place, digest = terms.keys.index(public), terms.digest(params, settings)
    direction = compute(terms.local_loss(place))
    refuse_unless(all(np.isfinite(part).all() for part in direction.values()), "its direction contains NaN or infinity")
    total = quantize(direction, terms.weights[place], clip_norm)
    for other, other_key in enumerate(terms.keys):
        if other != place:
            mask = generate_mask(private, other_key, digest, total.size)
            total = total + mask if other > place else total - mask
    return {MASKED: wire.to_record({"sum": total})}


# ---- the server's part


def parse_key(content: RecordDict) -> tuple[bytes, bytes]:
    """Return a client's public key for the round and its signature, which may be empty."""
    record: Any = wire.get_config(content, ROUND_KEY, "it contains no key for secure aggregation")
    key, signature = (part if isinstance(part := record.get(name), bytes) else b"" for name in ("key", "signature"))
    is_valid = len(key) == KEY_BYTES and len(signature) <= MAX_SIGNATURE_BYTES
    require(is_valid, "its key for the round or the signature has another size")
    return key, signature


def parse_masked(content: RecordDict, size: int) -> np.ndarray:
    """Return the masked direction in a client's reply, or raise ``InvalidMessageError``."""
    return wire.parse_arrays(content.get(MASKED), {"sum": wire.ArraySpec((size,), "uint32")})["sum"]


def make_terms(
    names: Sequence[str], reports: Sequence[RecordDict], weights: np.ndarray, loss: LocalLoss
) -> AggregationTerms:
    """Return the terms of a round. ``reports`` are the clients' messages, in the order of all arguments."""
    keys, signatures = zip(*map(parse_key, reports), strict=True)
    parts = loss.objective, *np.transpose(loss.constraint), loss.penalty, loss.tolerance
    losses = np.column_stack([np.broadcast_to(part, len(names)) for part in parts]).astype(np.float64)
    signed = list(signatures) if all(signatures) else []
    numbers = np.asarray(weights, np.float64).tolist(), losses.ravel().tolist()
    return AggregationTerms(list(names), list(keys), *numbers, signed)


def sum_directions(
    masked: Sequence[np.ndarray], clients: int, clip_norm: float, specs: Mapping[str, wire.ArraySpec]
) -> wire.Arrays:
    """Return the weighted sum of the directions; raise ``InvalidMessageError`` if one is missing or it is too long."""
    require(len(masked) == clients, f"{len(masked)} of {clients} directions arrived")
    numbers: Any = np.sum(masked, axis=0, dtype=np.uint32)
    total = dequantize(numbers, clip_norm, specs)
    norm = math.sqrt(sum(float(np.square(part).sum()) for part in total.values()))
    is_short = norm <= clip_norm * (NORM_SLACK + numbers.size**0.5 * clients / UNITS)
    require(is_short, f"the sum has norm {norm:.3g}, above clip_norm={clip_norm:g}")
    return total
