"""The operation files of the hospital example: valid, consistent with the loopback trial, and able to start."""

import http.client
import os
import re
import shlex
import shutil
import ssl
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
PROXY = OPERATION / "nginx.conf"
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
    *("read_only", "tmpfs", "cap_drop", "security_opt", "stop_grace_period", "profiles", "user", "depends_on"),
}
"""The used keys of the compose specification, to detect typing errors."""


def read_unit(kind):
    """Return the sections of a unit; repeated settings are joined."""

    class JoinedSettings(dict):
        def __setitem__(self, key, value):
            if isinstance(value, list) and key in self:
                self[key].extend(value)
            else:
                super().__setitem__(key, value)

    parser = ConfigParser(dict_type=JoinedSettings, strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str
    parser.read_string(re.sub(r"\\\n\s*", " ", UNITS[kind].read_text(encoding="utf-8")))
    return parser


def command_of_unit(kind):
    return shlex.split(read_unit(kind)["Service"]["ExecStart"])


def command_of_compose(kind):
    return yaml.safe_load(COMPOSE[kind].read_text(encoding="utf-8"))["services"][kind]["command"]


def options(command):
    return {word for word in command if word.startswith("--")}


def loopback_command(kind, tmp_path, monkeypatch):
    """Return the command that the loopback trial starts, without starting it."""
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
def known_options():
    """Return the options of Flower's programs."""
    options_by_program = {}
    for kind, program in PROGRAMS.items():
        process = subprocess.run([BIN / program, "--help"], capture_output=True, text=True, check=True)
        options_by_program[kind] = set(re.findall(r"--[a-z-]+", process.stdout + process.stderr))
    return options_by_program


@pytest.mark.parametrize("kind", PROGRAMS)
def test_options_exist_and_match_loopback(kind, known_options, tmp_path, monkeypatch):
    trial_options = options(loopback_command(kind, tmp_path, monkeypatch))
    assert {"--health-server-address", "--host", "--port"} <= trial_options
    for command in (command_of_unit(kind), command_of_compose(kind)):
        assert Path(command[0]).name == PROGRAMS[kind]
        assert options(command) <= known_options[kind]
        assert options(command) == trial_options
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    documented = re.search(rf"    {PROGRAMS[kind]} ((?:.*\\\n)*.*)\n", readme)[1]
    assert options(documented.split()) <= known_options[kind]


@pytest.mark.parametrize("kind", PROGRAMS)
def test_compose(kind):
    compose = yaml.safe_load(COMPOSE[kind].read_text(encoding="utf-8"))
    assert {key for key in compose if not key.startswith("x-")} == {"services", "volumes"}
    for service in compose["services"].values():
        assert set(service) <= SERVICE_KEYS
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}
        for volume in service["volumes"]:
            source, target, *mode = volume.split(":")
            assert target.startswith("/")
            assert source.startswith("./") or source in compose["volumes"]
            assert mode == (["ro"] if source.startswith("./") else [])
        build = service.get("build")
        if build:
            root = (OPERATION / build["context"]).resolve()
            assert (root / build["dockerfile"]).is_file()
        command = service["command"]
        assert all(isinstance(argument, str) for argument in command)
        # Every path in a command is mounted or part of the image.
        mounts = [volume.split(":")[1] for volume in service["volumes"]] + service["tmpfs"]
        for argument in command:
            if argument.startswith("/"):
                assert any(f"{argument}/".startswith(f"{mount}/") for mount in mounts), argument
    health = compose["services"][kind]["healthcheck"]
    address = command_of_compose(kind)[command_of_compose(kind).index("--health-server-address") + 1]
    assert health["test"] == ["CMD", "python", "/app/health.py", address]
    assert (EXAMPLE / "health.py").is_file()
    assert "COPY examples/hospitals /app" in (OPERATION / "Dockerfile").read_text(encoding="utf-8")


def test_dockerfile_sources_exist():
    root = EXAMPLE.parents[1]
    for line in (OPERATION / "Dockerfile").read_text(encoding="utf-8").splitlines():
        assert re.match(r"(#|FROM|WORKDIR|COPY|RUN|USER|ENV|    &&|$)", line), line
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (root / source).exists(), source
    extras = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    image_extras = re.search(r'"\.\[(.*?)\]"', (OPERATION / "Dockerfile").read_text(encoding="utf-8"))[1]
    assert set(image_extras.split(",")) <= set(extras)


def test_flwr_configuration():
    configuration = tomllib.loads((OPERATION / "flower-config.toml").read_text(encoding="utf-8"))["superlink"]
    services = yaml.safe_load(COMPOSE["superlink"].read_text(encoding="utf-8"))["services"]
    host, port = configuration[configuration["default"]]["address"].split(":")
    command = services[host]["command"]
    assert command[command.index("--port") + 1] == port
    (mounted,) = (volume for volume in services["flwr"]["volumes"] if volume.startswith("./flower-config.toml:"))
    assert mounted.endswith(":/flower/config.toml:ro")


def test_only_open_port_is_of_proxy():
    """Whoever reaches the SuperLink's port can register nodes and start code at every hospital."""
    published = {
        name: service["ports"]
        for file in COMPOSE.values()
        for name, service in yaml.safe_load(file.read_text(encoding="utf-8"))["services"].items()
        if "ports" in service
    }
    (listened,) = re.findall(r"^ *listen (\d+) ssl;$", PROXY.read_text(encoding="utf-8"), flags=re.M)
    assert published == {"proxy": [f"{listened}:{listened}"]}
    readme = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    documented = shlex.split(re.search(r"    flower-superlink ((?:.*\\\n)*.*)\n", readme)[0].replace("\\\n", " "))
    commands = {
        **{f"unit of {kind}": command_of_unit(kind) for kind in PROGRAMS},
        "compose file of supernode": command_of_compose("supernode"),
        "README": documented,
    }
    for name, command in commands.items():
        assert command[command.index("--host") + 1] == "127.0.0.1", name
    for name, command in {**commands, "compose file of superlink": command_of_compose("superlink")}.items():
        assert command[command.index("--health-server-address") + 1].startswith("127.0.0.1:"), name


def test_lists_of_clients_and_counters_are_kept():
    """The coordinator has a list of keys by default, and a hospital's counts outlast a restart of its container."""
    coordinator, hospital = (yaml.safe_load(COMPOSE[kind].read_text(encoding="utf-8"))["services"] for kind in PROGRAMS)
    folder = coordinator["superlink"]["environment"]["HOSPITALS_CLIENTS"]
    assert f"./clients:{folder}:ro" in coordinator["superlink"]["volumes"]
    assert f"state:{hospital['supernode']['environment']['XDG_STATE_HOME']}" in hospital["supernode"]["volumes"]
    superlink, supernode = (read_unit(kind)["Service"] for kind in PROGRAMS)
    assert "HOSPITALS_CLIENTS=/etc/softswitch/clients" in superlink["Environment"].split()
    assert "XDG_STATE_HOME=%S/softswitch" in supernode["Environment"].split()
    assert supernode["StateDirectory"] == "softswitch"


@pytest.mark.slow
def test_proxy_passes_on_messages_of_nodes_only(tmp_path):
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    import keys

    keys.main(tmp_path / "keys", 1, ["127.0.0.1", "superlink"])
    port = loopback.free_port()
    with loopback.Loopback(tmp_path, nodes=0, app=tmp_path) as trial:
        text = PROXY.read_text(encoding="utf-8").replace("https://superlink:8000", f"https://{trial.address}")
        text = text.replace("listen 8443", f"listen 127.0.0.1:{port}")
        (tmp_path / "nginx.conf").write_text(text, encoding="utf-8")
        trial.processes["proxy"] = proxy = subprocess.Popen(
            ["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-g", "daemon off;"],
            start_new_session=True,
        )
        trial.register(1)
        trial.start_node(1, superlink=f"127.0.0.1:{port}")
        deadline = loopback.time.monotonic() + loopback.LIMIT
        command = [BIN / "flwr", "supernode", "list", loopback.CONNECTION, "--format", "json"]
        while True:  # the node is online through the proxy
            listed = subprocess.run(command, env=trial.environment, capture_output=True, text=True, check=False)
            if "online" in listed.stdout:
                break
            assert proxy.poll() is None
            assert loopback.time.monotonic() < deadline, listed.stdout + listed.stderr
        context = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.crt"))
        paths = (
            *("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/get-nodes", "/", "/docs"),
            *("/v1/fleet/../control/start-run", "/v1/fleet/..%2fcontrol/start-run", "//v1/control/start-run"),
            *("/v1/control/../fleet/get-run", "/v1/fleet/get-run?x=1", "/v1/fleet/"),
        )
        for path in paths:
            status = []
            for address in (port, trial.port):
                connection = http.client.HTTPSConnection("127.0.0.1", address, context=context)
                connection.request("POST", path, b"")
                status.append(connection.getresponse().status)
                connection.close()
            assert status[0] == 403, path
            assert status[1] != 403 or not path.startswith("/v1/control/s"), (
                path
            )  # the SuperLink itself does not refuse


@pytest.mark.parametrize("kind", PROGRAMS)
def test_units_are_consistent(kind):
    service = read_unit(kind)["Service"]
    credentials = {line.partition(":")[0] for line in service["LoadCredential"].splitlines()}
    used = set(re.findall(r"\$\{CREDENTIALS_DIRECTORY\}/(\S+)", service["ExecStart"]))
    assert used == credentials
    assert service["Restart"] == "always"
    journal = (OPERATION / f"journald@{service['LogNamespace']}.conf").read_text(encoding="utf-8")
    assert re.search(r"^SystemMaxUse=\d", journal, flags=re.M)
    assert re.search(r"^MaxRetentionSec=\d", journal, flags=re.M)


@pytest.mark.parametrize("way", ["unit", "compose", "loopback"])
@pytest.mark.parametrize("is_new", [True, False])
def test_database_is_private(way, is_new, tmp_path):
    """What starts the SuperLink leaves a database, and SQLite's files next to it, that only its user can read."""
    if not is_new:
        (tmp_path / "state.db").touch(0o644)
    program = "import sqlite3; c = sqlite3.connect('state.db'); c.execute('pragma journal_mode=wal'); "
    command = [sys.executable, "-c", program + "c.execute('create table t (x)'); import os; os._exit(0)"]
    if way == "unit":
        before = read_unit("superlink")["Service"]["ExecStartPre"].replace("${STATE_DIRECTORY}", str(tmp_path))
        subprocess.run(shlex.split(before), check=True, umask=0o022)
    elif way == "compose":
        entry = yaml.safe_load(COMPOSE["superlink"].read_text(encoding="utf-8"))["services"]["superlink"]["entrypoint"]
        command = [part.replace("$$", "$").replace("/state/", f"{tmp_path}/") for part in entry] + command
    else:
        (tmp_path / "state.db").unlink(missing_ok=True)  # a trial's folder is new
        assert loopback.Loopback(tmp_path).start("superlink", sys.executable, *command[1:]).wait() == 0
    if way != "loopback":
        subprocess.run(command, cwd=tmp_path, check=True, umask=0o022)
    assert {file.name: file.stat().st_mode & 0o777 for file in tmp_path.glob("state.db*")} == dict.fromkeys(
        ("state.db", "state.db-wal", "state.db-shm"), 0o600
    )


@pytest.mark.parametrize("kind", PROGRAMS)
def test_systemd_accepts_units(kind, tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = UNITS[kind].read_text(encoding="utf-8")
    assert "/opt/softswitch/.venv/bin/" in text
    file = tmp_path / UNITS[kind].name
    file.write_text(text.replace("/opt/softswitch/.venv/bin/", f"{BIN}/"), encoding="utf-8")
    process = subprocess.run(["systemd-analyze", "verify", file], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout + process.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", file]  # of 100: 0 is the safest
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout[-300:] + process.stderr


def test_systemd_accepts_unit_of_proxy():
    if shutil.which("systemd-analyze") is None or not Path("/usr/sbin/nginx").exists():
        pytest.skip("systemd-analyze or nginx is not installed")
    file = OPERATION / "softswitch-proxy.service"
    for command in (["verify"], ["security", "--offline=true", "--threshold=30"]):
        process = subprocess.run(["systemd-analyze", *command, file], capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stdout[-300:] + process.stderr


@pytest.mark.slow
def test_unit_commands_start(tmp_path):
    """The commands of the units, with other ports and folders, start healthy programs."""
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
            arguments = [
                re.sub(r"\$\{(\w+)\}", lambda name: places[name[1]], argument) for argument in command_of_unit(kind)
            ]
            node_ports = {**ports, "8099": loopback.free_port()}
            arguments = [
                re.sub(
                    r"(?<![\d])(8000|8099|9094)$",
                    lambda port, node_ports=node_ports: str(node_ports[port[1]]),
                    argument,
                )
                for argument in arguments
            ]
            assert not any("$" in argument for argument in arguments)
            process = trial.start(kind, PROGRAMS[kind], *arguments[1:])
            deadline = loopback.time.monotonic() + loopback.LIMIT
            address = arguments[arguments.index("--health-server-address") + 1]
            while not health.serving(address):
                log = (tmp_path / "logs" / f"{kind}.log").read_text(errors="replace")
                # A node that is not registered starts and is rejected.
                assert process.poll() is None, log
                assert loopback.time.monotonic() < deadline, log
            if kind == "superlink":
                flwr_home = Path(trial.environment["FLWR_HOME"])
                flwr_home.mkdir(exist_ok=True)
                (flwr_home / "config.toml").write_text(
                    f'[superlink]\ndefault = "{loopback.CONNECTION}"\n\n[superlink.{loopback.CONNECTION}]\n'
                    f'address = "{places["COORDINATOR"]}"\nroot-certificates = "{tmp_path / "keys" / "ca.crt"}"\n',
                    encoding="utf-8",
                )
                trial.register(1)
    finally:
        trial.stop_all()
    assert not health.serving(address)


def test_pages_do_not_recommend_killing_by_name():
    """No page recommends pkill or killall, which could end other users' processes."""
    root = EXAMPLE.parents[1]
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *EXAMPLE.rglob("*.md")]
    assert len(pages) > 20
    assert [str(page) for page in pages if re.search(r"\b(pkill|killall)\b", page.read_text(encoding="utf-8"))] == []
    assert os.path.exists(EXAMPLE / "README.md")
