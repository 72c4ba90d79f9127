"""Creation and renewal of certificates and keys in the hospital example."""

import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
sys.path.insert(0, str(EXAMPLE))
import keys  # noqa: E402


def read_certificate(file):
    return x509.load_pem_x509_certificate(file.read_bytes())


def addresses(certificate):
    return [
        str(name.value) for name in certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    ]


@pytest.fixture
def folder(tmp_path):
    keys.main(tmp_path / "keys", 2, ["127.0.0.1", "fl.example.org"])
    return tmp_path / "keys"


def test_created_files(folder, tmp_path):
    assert sorted(file.name for file in folder.iterdir()) == [
        *("authority", "ca.crt", "node-1", "node-1.pub", "node-2", "node-2.pub", "server.crt", "server.key")
    ]
    for name in ("authority/ca.key", "server.key", "node-1", "node-2"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE((folder / "authority").stat().st_mode) == 0o700
    read_certificate(folder / "server.crt").verify_directly_issued_by(read_certificate(folder / "ca.crt"))
    assert addresses(read_certificate(folder / "server.crt")) == ["127.0.0.1", "fl.example.org"]
    with pytest.raises(ValueError, match=r"has authority/ca.key already; python keys.py renew"):
        keys.main(folder, 1, ["127.0.0.1"])
    ca_certificate, moved_authority = (
        (folder / "ca.crt").read_bytes(),
        (folder / "authority").rename(tmp_path / "elsewhere"),
    )
    with pytest.raises(ValueError, match=r"has ca.crt already"):
        keys.main(folder, 1, ["127.0.0.1"])
    assert (folder / "ca.crt").read_bytes() == ca_certificate
    moved_authority.rename(folder / "authority")


def test_certificate_renewal(folder, tmp_path):
    old_certificate, root = read_certificate(folder / "server.crt"), (folder / "ca.crt").read_bytes()
    secret = (folder / "server.key").read_bytes()
    (folder / "authority").rename(tmp_path / "elsewhere")
    keys.renew(folder, tmp_path / "elsewhere", [])
    new_certificate = read_certificate(folder / "server.crt")
    new_certificate.verify_directly_issued_by(read_certificate(folder / "ca.crt"))
    assert new_certificate.serial_number != old_certificate.serial_number
    assert new_certificate.public_key() == old_certificate.public_key()
    assert addresses(new_certificate) == addresses(old_certificate)
    assert abs(new_certificate.not_valid_after_utc - datetime.now(UTC) - timedelta(days=keys.DAYS)) < timedelta(
        minutes=10
    )
    # The files of the hospitals remain valid.
    assert (folder / "ca.crt").read_bytes() == root
    assert (folder / "server.key").read_bytes() == secret
    keys.renew(folder, tmp_path / "elsewhere", ["new.example.org"])
    assert addresses(read_certificate(folder / "server.crt")) == ["new.example.org"]


def test_other_authority_cannot_renew(folder, tmp_path):
    keys.main(tmp_path / "other", 0, ["127.0.0.1"])
    with pytest.raises(ValueError, match="is not the key of"):
        keys.renew(folder, tmp_path / "other" / "authority", [])


def test_certificate_expires_with_authority(folder, monkeypatch, capsys):
    monkeypatch.setattr(keys, "DAYS", 365 * (keys.YEARS + 1))
    keys.renew(folder, folder / "authority", [])
    assert (
        read_certificate(folder / "server.crt").not_valid_after_utc
        == read_certificate(folder / "ca.crt").not_valid_after_utc
    )
    assert "The authority itself ends" not in capsys.readouterr().out


def test_command(folder):
    def run(*arguments):
        return subprocess.run(
            [sys.executable, EXAMPLE / "keys.py", *arguments], capture_output=True, text=True, check=False
        )

    completed = run("renew", folder)
    assert completed.returncode == 0
    assert "valid until" in completed.stdout
    (folder / "authority" / "ca.key").unlink()
    rejected = run("renew", folder)
    assert rejected.returncode == 1
    assert rejected.stderr.startswith("keys.py: ")
    assert "ca.key" in rejected.stderr
    assert run().returncode == 1
