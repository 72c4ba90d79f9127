"""Make certificates and keys: `python keys.py FOLDER NODES [ADDRESS ...]`; later `python keys.py renew FOLDER`.

FOLDER gets ca.crt and, for the coordinator, server.crt and server.key, valid for 90 days and for the given addresses
(by default 127.0.0.1 and localhost); and for each hospital node-1 and node-1.pub, node-2 and so on. With NODES 0 there
are none of these: let every hospital make its own key, so that no private key ever travels.

FOLDER/authority has ca.key, which signs certificates, for ten years. Whoever has it can pass for the coordinator: move
the folder to where only the person who renews certificates can read it, not on the coordinator's machine.
`python keys.py renew FOLDER [--authority FOLDER] [ADDRESS ...]` makes a new server.crt, of the same key and, unless
others are given, for the same addresses.
"""

import argparse
import ipaddress
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS, YEARS = 90, 10
"""How long the server's certificate is valid, and the authority's."""
AUTHORITY, COORDINATOR = "trial authority", "trial coordinator"


def private(file: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """Write a private key that only its owner may read."""
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        stream.write(content)


def name(common: str) -> x509.Name:
    """A certificate's subject."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey, until: datetime
) -> x509.CertificateBuilder:
    """What all our certificates have in common, to be signed by ``signer``."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def alternative(address: str) -> x509.GeneralName:
    """An address as certificates write it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def signed_root(authority: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """The authority's own certificate."""
    usage = {
        "digital_signature": False,
        "content_commitment": False,
        "key_encipherment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "encipher_only": False,
        "decipher_only": False,
    }
    until = datetime.now(UTC) + timedelta(days=365 * YEARS)
    return (
        certificate(AUTHORITY, authority, AUTHORITY, authority, until)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .sign(authority, hashes.SHA384())
    )


def signed_server(
    server: ec.EllipticCurvePrivateKey,
    names: list[x509.GeneralName],
    authority: ec.EllipticCurvePrivateKey,
    root: x509.Certificate,
) -> x509.Certificate:
    """The coordinator's certificate; never valid for longer than the authority's own."""
    until = min(datetime.now(UTC) + timedelta(days=DAYS), root.not_valid_after_utc)
    return (
        certificate(COORDINATOR, server, AUTHORITY, authority, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority, hashes.SHA384())
    )


def public(file: Path, certified: x509.Certificate) -> None:
    """Write a certificate, whole or not at all."""
    beside = file.with_name(f".{file.name}.tmp")
    beside.write_bytes(certified.public_bytes(serialization.Encoding.PEM))
    beside.replace(file)


def main(folder: Path, nodes: int, addresses: list[str]) -> None:
    """Write everything."""
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    there = [name for name in ("authority/ca.key", "ca.crt", "server.key") if (folder / name).exists()]
    if there:  # hospitals trust this ca.crt: it is not written over, wherever its key was moved to
        raise ValueError(f"{folder} has {there[0]} already; python keys.py renew {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "authority").mkdir(mode=0o700, exist_ok=True)
    root = signed_root(authority)
    private(folder / "authority" / "ca.key", authority, serialization.PrivateFormat.PKCS8)
    public(folder / "ca.crt", root)
    public(folder / "server.crt", signed_server(server, [alternative(one) for one in addresses], authority, root))
    private(folder / "server.key", server, serialization.PrivateFormat.TraditionalOpenSSL)
    for node in range(1, nodes + 1):
        key = ec.generate_private_key(ec.SECP384R1())
        private(folder / f"node-{node}", key, serialization.PrivateFormat.OpenSSH)
        own = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (folder / f"node-{node}.pub").write_bytes(own + f" node-{node}\n".encode())
    print(f"{folder}: ca.crt, server.crt (valid for {DAYS} days), server.key, and keys of {nodes} nodes")
    print(f"{folder / 'authority'}: the authority's key. Move it to where only who renews certificates can read it.")


def renew(folder: Path, authority: Path, addresses: list[str]) -> None:
    """Write a new server.crt; keys stay."""
    signer = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    server = serialization.load_pem_private_key((folder / "server.key").read_bytes(), None)
    root, old = (x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("ca.crt", "server.crt"))
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    assert isinstance(server, ec.EllipticCurvePrivateKey)
    if signer.public_key() != root.public_key():
        raise ValueError(f"{authority / 'ca.key'} is not the key of {folder / 'ca.crt'}")
    names = [alternative(one) for one in addresses]
    if not names:
        names = list(old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    made = signed_server(server, names, signer, root)
    public(folder / "server.crt", made)
    print(f"{folder / 'server.crt'}: valid until {made.not_valid_after_utc:%Y-%m-%d}. Start the SuperLink anew.")
    left = root.not_valid_after_utc - datetime.now(UTC)
    if left < timedelta(days=365):
        print(f"The authority itself ends in {left.days} days: every hospital needs a new ca.crt before that.")


def told() -> None:
    """What the command line says."""
    if sys.argv[1:2] == ["renew"]:
        parser = argparse.ArgumentParser(prog="keys.py renew")
        parser.add_argument("folder", type=Path)
        parser.add_argument("addresses", nargs="*", metavar="ADDRESS")
        parser.add_argument("--authority", type=Path, help="where ca.key is; by default FOLDER/authority")
        asked = parser.parse_args(sys.argv[2:])
        renew(asked.folder, asked.authority or asked.folder / "authority", asked.addresses)
        return
    if len(sys.argv) < 3 or not sys.argv[2].isdecimal():
        sys.exit("usage: python keys.py FOLDER NODES [ADDRESS ...], or python keys.py renew FOLDER [ADDRESS ...]")
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or ["127.0.0.1", "localhost"])


if __name__ == "__main__":
    try:
        told()
    except (OSError, ValueError) as error:
        sys.exit(f"keys.py: {error}")
