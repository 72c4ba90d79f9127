"""Certificates and keys of the hospitals' example: made, and renewed."""

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


def read(file):
    return x509.load_pem_x509_certificate(file.read_bytes())


def addresses(certificate):
    return [str(one.value) for one in certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]


@pytest.fixture
def folder(tmp_path):
    keys.main(tmp_path / "keys", 2, ["127.0.0.1", "fl.example.org"])
    return tmp_path / "keys"


def test_what_is_made(folder, tmp_path):
    assert sorted(file.name for file in folder.iterdir()) == [
        *("authority", "ca.crt", "node-1", "node-1.pub", "node-2", "node-2.pub", "server.crt", "server.key")
    ]
    for name in ("authority/ca.key", "server.key", "node-1", "node-2"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE((folder / "authority").stat().st_mode) == 0o700
    read(folder / "server.crt").verify_directly_issued_by(read(folder / "ca.crt"))
    assert addresses(read(folder / "server.crt")) == ["127.0.0.1", "fl.example.org"]
    with pytest.raises(ValueError, match=r"has authority/ca.key already; python keys.py renew"):
        keys.main(folder, 1, ["127.0.0.1"])
    trusted, moved = (folder / "ca.crt").read_bytes(), (folder / "authority").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"has ca.crt already"):
        keys.main(folder, 1, ["127.0.0.1"])
    assert (folder / "ca.crt").read_bytes() == trusted
    moved.rename(folder / "authority")


def test_a_certificate_is_renewed(folder, tmp_path):
    before, root = read(folder / "server.crt"), (folder / "ca.crt").read_bytes()
    secret = (folder / "server.key").read_bytes()
    (folder / "authority").rename(tmp_path / "elsewhere")
    keys.renew(folder, tmp_path / "elsewhere", [])
    after = read(folder / "server.crt")
    after.verify_directly_issued_by(read(folder / "ca.crt"))
    assert after.serial_number != before.serial_number
    assert after.public_key() == before.public_key()
    assert addresses(after) == addresses(before)
    assert abs(after.not_valid_after_utc - datetime.now(UTC) - timedelta(days=keys.DAYS)) < timedelta(minutes=10)
    # The files of the hospitals stay valid.
    assert (folder / "ca.crt").read_bytes() == root
    assert (folder / "server.key").read_bytes() == secret
    keys.renew(folder, tmp_path / "elsewhere", ["new.example.org"])
    assert addresses(read(folder / "server.crt")) == ["new.example.org"]


def test_another_authority_cannot_renew(folder, tmp_path):
    keys.main(tmp_path / "other", 0, ["127.0.0.1"])
    with pytest.raises(ValueError, match="is not the key of"):
        keys.renew(folder, tmp_path / "other" / "authority", [])


def test_no_certificate_outlives_its_authority(folder, monkeypatch, capsys):
    monkeypatch.setattr(keys, "DAYS", 365 * (keys.YEARS + 1))
    keys.renew(folder, folder / "authority", [])
    assert read(folder / "server.crt").not_valid_after_utc == read(folder / "ca.crt").not_valid_after_utc
    assert "The authority itself ends" not in capsys.readouterr().out


def test_the_command(folder):
    def run(*words):
        return subprocess.run(
            [sys.executable, EXAMPLE / "keys.py", *words], capture_output=True, text=True, check=False
        )

    done = run("renew", folder)
    assert done.returncode == 0
    assert "valid until" in done.stdout
    (folder / "authority" / "ca.key").unlink()
    refused = run("renew", folder)
    assert refused.returncode == 1
    assert refused.stderr.startswith("keys.py: ")
    assert "ca.key" in refused.stderr
    assert run().returncode == 1
