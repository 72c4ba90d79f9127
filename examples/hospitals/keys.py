"""Make certificates and keys for a trial: `python keys.py FOLDER NODES [ADDRESS ...]`.

FOLDER gets ca.crt and, for the coordinator, server.crt and server.key, valid for 30 days and for the given addresses
(by default 127.0.0.1 and localhost); and for each hospital node-1 and node-1.pub, node-2 and so on. For anything but a
trial let your own certificate authority sign the server's certificate, and let every hospital make its own key, so that
no private key ever travels.
"""

import ipaddress
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 30


def private(file: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    """Write a private key that only its owner may read."""
    content = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        stream.write(content)


def name(common: str) -> x509.Name:
    """A certificate's subject."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def certificate(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey
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
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def alternative(address: str) -> x509.GeneralName:
    """An address as certificates write it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def main(folder: Path, nodes: int, addresses: list[str]) -> None:
    """Write everything."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    usage = {
        "digital_signature": False,
        "content_commitment": False,
        "key_encipherment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "encipher_only": False,
        "decipher_only": False,
    }
    root = (
        certificate("trial authority", authority, "trial authority", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(key_cert_sign=True, crl_sign=True, **usage), critical=True)
        .sign(authority, hashes.SHA384())
    )
    own = (
        certificate("trial coordinator", server, "trial authority", authority)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([alternative(one) for one in addresses]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    private(folder / "server.key", server, serialization.PrivateFormat.TraditionalOpenSSL)
    for node in range(1, nodes + 1):
        key = ec.generate_private_key(ec.SECP384R1())
        private(folder / f"node-{node}", key, serialization.PrivateFormat.OpenSSH)
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (folder / f"node-{node}.pub").write_bytes(public + f" node-{node}\n".encode())
    print(f"{folder}: ca.crt, server.crt, server.key, and keys of {nodes} nodes, valid for {DAYS} days")


if __name__ == "__main__":
    if len(sys.argv) < 3 or not sys.argv[2].isdecimal():
        sys.exit("usage: python keys.py FOLDER NODES [ADDRESS ...]")
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or ["127.0.0.1", "localhost"])
