"""The operation files of the hospital example: valid, consistent with the loopback trial, and able to start."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
OPERATION = EXAMPLE / "operation"
BIN = Path(sys.executable).parent
sys.path.insert(0, str(EXAMPLE))
import loopback  # noqa: E402

PROGRAMS = {"superlink": "flower-superlink", "supernode": "flower-supernode"}
UNITS = {kind: OPERATION / f"softswitch-{kind}.service" for kind in PROGRAMS}
COMPOSE = {"superlink": OPERATION / "coordinator.yaml", "supernode": OPERATION / "hospital.yaml"}
SERVICE_KEYS = {
    *(
        "image",
        "build",
        "command",
        "entrypoint",
        "environment",
        "ports",
        "volumes",
        "healthcheck",
        "restart",
        "logging",
    ),
    *("read_only", "tmpfs", "cap_drop", "security_opt", "stop_grace_period", "profiles"),
}
"""The keys of the compose specification that are used: one that is mistyped is not among them."""


def unit(kind):
    """Return the sections of a unit; repeated settings are joined."""

    class Several(dict):
        def __setitem__(self, key, value):
            if isinstance(value, list) and key in self:
                self[key].extend(value)
            else:
                super().__setitem__(key, value)

    parser = ConfigParser(dict_type=Several, strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str
    parser.read_string(re.sub(r"\\\n\s*", " ", UNITS[kind].read_text(encoding="utf-8")))
    return parser


def command_of_unit(kind):
    return shlex.split(unit(kind)["Service"]["ExecStart"])


def command_of_compose(kind):
    return yaml.safe_load(COMPOSE[kind].read_text(encoding="utf-8"))["services"][kind]["command"]


def options(command):
    return {word for word in command if word.startswith("--")}


def of_loopback(kind, tmp_path, monkeypatch):
    """What the trial on one machine starts, without starting it."""
    started = {}

    def start(self, name, program, *arguments):
        started[program] = list(arguments)
        return self.processes.setdefault(name, subprocess.Popen(["true"]))

    monkeypatch.setattr(loopback.Loopback, "start", start)
    trial = loopback.Loopback(tmp_path, nodes=1)
    if kind == "supernode":
        trial.start_node(1)
    else:
        monkeypatch.setattr(loopback.time, "monotonic", iter([0, loopback.LIMIT + 1]).__next__)
        with pytest.raises(RuntimeError, match="did not start"):
            trial.start_superlink()
    for process in trial.processes.values():
        process.wait()
    return started[PROGRAMS[kind]]


@pytest.fixture(scope="module")
def known():
    """The options that Flower's programs have."""
    found = {}
    for kind, program in PROGRAMS.items():
        told = subprocess.run([BIN / program, "--help"], capture_output=True, text=True, check=True)
        found[kind] = set(re.findall(r"--[a-z-]+", told.stdout + told.stderr))
    return found


@pytest.mark.parametrize("kind", PROGRAMS)
def test_every_option_exists_and_is_the_trials(kind, known, tmp_path, monkeypatch):
    asked = options(of_loopback(kind, tmp_path, monkeypatch))
    assert {"--health-server-address", "--host", "--port"} <= asked
    for command in (command_of_unit(kind), command_of_compose(kind)):
        assert Path(command[0]).name == PROGRAMS[kind]
        assert options(command) <= known[kind]
        assert options(command) == asked
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    shown = re.search(rf"    {PROGRAMS[kind]} ((?:.*\\\n)*.*)\n", readme)[1]
    assert options(shown.split()) <= known[kind]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_compose(kind):
    told = yaml.safe_load(COMPOSE[kind].read_text(encoding="utf-8"))
    assert {key for key in told if not key.startswith("x-")} == {"services", "volumes"}
    for service in told["services"].values():
        assert set(service) <= SERVICE_KEYS
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}
        for volume in service["volumes"]:
            source, target, *how = volume.split(":")
            assert target.startswith("/")
            assert source.startswith("./") or source in told["volumes"]
            assert how == (["ro"] if source.startswith("./") else [])
        build = service.get("build")
        if build:
            root = (OPERATION / build["context"]).resolve()
            assert (root / build["dockerfile"]).is_file()
        words = service["command"]
        assert all(isinstance(word, str) for word in words)
        # What a command reads or writes is mounted, or part of the image.
        places = [volume.split(":")[1] for volume in service["volumes"]] + service["tmpfs"]
        for word in words:
            if word.startswith("/"):
                assert any(word.startswith(f"{place}/") for place in places), word
    health = told["services"][kind]["healthcheck"]
    address = command_of_compose(kind)[command_of_compose(kind).index("--health-server-address") + 1]
    assert health["test"] == ["CMD", "python", "/app/health.py", address]
    assert (EXAMPLE / "health.py").is_file()
    assert "COPY examples/hospitals /app" in (OPERATION / "Dockerfile").read_text(encoding="utf-8")


def test_the_image_has_what_it_copies():
    root = EXAMPLE.parents[1]
    for line in (OPERATION / "Dockerfile").read_text(encoding="utf-8").splitlines():
        assert re.match(r"(#|FROM|WORKDIR|COPY|RUN|USER|ENV|    &&|$)", line), line
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (root / source).exists(), source
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = re.search(r'"\.\[(.*?)\]"', (OPERATION / "Dockerfile").read_text(encoding="utf-8"))[1]
    assert set(named.split(",")) <= set(extras)


def test_flwr_finds_the_coordinator():
    told = tomllib.loads((OPERATION / "flower-config.toml").read_text(encoding="utf-8"))["superlink"]
    services = yaml.safe_load(COMPOSE["superlink"].read_text(encoding="utf-8"))["services"]
    host, port = told[told["default"]]["address"].split(":")
    assert host in services
    assert services[host]["ports"] == [f"{port}:{port}"]
    (mounted,) = (volume for volume in services["flwr"]["volumes"] if volume.startswith("./flower-config.toml:"))
    assert mounted.endswith(":/flower/config.toml:ro")


@pytest.mark.parametrize("kind", PROGRAMS)
def test_units_agree_with_themselves(kind):
    told = unit(kind)["Service"]
    given = {line.partition(":")[0] for line in told["LoadCredential"].splitlines()}
    used = set(re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/(\S+)", told["ExecStart"]))
    assert used == given
    assert told["Restart"] == "always"
    journal = (OPERATION / f"journald@{told['LogNamespace']}.conf").read_text(encoding="utf-8")
    assert re.search(r"^SystemMaxUse=\d", journal, flags=re.M)
    assert re.search(r"^MaxRetentionSec=\d", journal, flags=re.M)


@pytest.mark.parametrize("kind", PROGRAMS)
def test_systemd_has_nothing_to_say_against_the_units(kind, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here to look at the units with")
    text = UNITS[kind].read_text(encoding="utf-8")
    assert "/opt/softswitch/.venv/bin/" in text
    file = tmp_path / UNITS[kind].name
    file.write_text(text.replace("/opt/softswitch/.venv/bin/", f"{BIN}/"), encoding="utf-8")
    seen = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert (seen.returncode, seen.stdout + seen.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", file]  # of 100: 0 is the safest
    seen = subprocess.run(command, capture_output=True, text=True, check=False)
    assert seen.returncode == 0, seen.stdout[-300:] + seen.stderr


@pytest.mark.slow
def test_the_units_commands_start(tmp_path):
    """The very commands of the units, with other ports and folders: both programs say that they are well."""
    import health
    import keys

    keys.main(tmp_path / "keys", 1, ["127.0.0.1"])
    shutil.copy(tmp_path / "keys" / "node-1", tmp_path / "keys" / "node")
    ports = {"8000": loopback.free_port(), "8099": loopback.free_port(), "9094": loopback.free_port()}
    trial = loopback.Loopback(tmp_path, nodes=1)
    places = {
        "CREDENTIALS_DIRECTORY": str(tmp_path / "keys"),
        "STATE_DIRECTORY": str(tmp_path),
        "COORDINATOR": f"127.0.0.1:{ports['8000']}",
        "FILE": str(tmp_path / "hospital-1.csv"),
    }
    try:
        for kind in PROGRAMS:
            words = [re.sub(r"\$\{(\w+)\}", lambda name: places[name[1]], word) for word in command_of_unit(kind)]
            own = {**ports, "8099": loopback.free_port()}
            words = [
                re.sub(r"(?<![\d])(8000|8099|9094)$", lambda port, own=own: str(own[port[1]]), word) for word in words
            ]
            assert not any("$" in word for word in words)
            process = trial.start(kind, PROGRAMS[kind], *words[1:])
            until = loopback.time.monotonic() + loopback.LIMIT
            address = words[words.index("--health-server-address") + 1]
            while not health.serving(address):
                log = (tmp_path / "logs" / f"{kind}.log").read_text(errors="replace")
                # A node that is not registered is turned away, after it was well.
                assert process.poll() is None, log
                assert loopback.time.monotonic() < until, log
            if kind == "superlink":
                home = Path(trial.environment["FLWR_HOME"])
                home.mkdir(exist_ok=True)
                (home / "config.toml").write_text(
                    f'[superlink]\ndefault = "{loopback.CONNECTION}"\n\n[superlink.{loopback.CONNECTION}]\n'
                    f'address = "{places["COORDINATOR"]}"\nroot-certificates = "{tmp_path / "keys" / "ca.crt"}"\n',
                    encoding="utf-8",
                )
                trial.register(1)
    finally:
        trial.stop_all()
    assert not health.serving(address)


def test_nobody_is_told_to_end_what_others_started():
    """No page says pkill or killall: there may be other people's processes of that name."""
    root = EXAMPLE.parents[1]
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *EXAMPLE.rglob("*.md")]
    assert len(pages) > 20
    assert [str(page) for page in pages if re.search(r"\b(pkill|killall)\b", page.read_text(encoding="utf-8"))] == []
    assert os.path.exists(EXAMPLE / "README.md")
