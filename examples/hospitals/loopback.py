"""The whole deployment on one machine: `python loopback.py FOLDER [--model network] [--resume] [--imposter]`.

A SuperLink and five SuperNodes as processes of their own, with TLS and node authentication, on 127.0.0.1 and free
ports. Only the five hospitals whose keys are in FOLDER/clients may take part; --imposter starts a sixth node, with a
key that the SuperLink knows and the list does not, which calls itself hospital-1. --exclude hospital-3 goes on without
that one. Everything is below FOLDER: the hospitals' files, keys, logs and the run's folder with its report. Every
process is stopped at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import data
import health
import keys

APP = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
CONNECTION = "hospitals"
LIMIT = 900  # seconds: on a busy machine a start takes long, and this only ends one that hangs
ATTEMPTS = 10  # to register a node


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Loopback:
    """A SuperLink and its SuperNodes below one folder; a context that stops whatever it started.

    The first ``nodes`` are members, whose keys are in the folder ``clients``; ``imposters`` more have keys that are
    registered at the SuperLink and not in that list.
    """

    member = "hospital-{}"

    def __init__(self, folder: Path, nodes: int = 5, app: Path = APP, imposters: int = 0) -> None:
        self.folder = folder.resolve()
        self.nodes = nodes
        self.imposters = imposters
        self.app = app
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(self.folder / "flower"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "HOSPITALS_METRICS": str(self.folder / "metrics" / "hospitals.prom"),
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "programs"),  # every message starts a process
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "OMP_NUM_THREADS": "1",  # many processes share the cores
        }

    def __enter__(self) -> Loopback:
        if self.app == APP and not (self.folder / "data").exists():
            data.main(self.folder / "data")
        if not (self.folder / "keys" / "ca.crt").exists():
            keys.main(self.folder / "keys", self.nodes + 1, ["127.0.0.1"])
        self.clients.mkdir(exist_ok=True)
        for node in range(1, self.nodes + 1):
            shutil.copy(self.folder / "keys" / f"node-{node}.pub", self.clients / f"{self.member.format(node)}.pub")
        try:
            self.start_superlink()
            for node in range(1, self.nodes + self.imposters + 1):
                self.register(node)
                self.start_node(node)
        except BaseException:
            self.stop_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    @property
    def clients(self) -> Path:
        """The members' public keys, each under its name."""
        return self.folder / "clients"

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self.port}"

    def start_superlink(self) -> None:
        """Start the coordinator, and tell flwr where it is."""
        home, secret = self.folder / "flower", self.folder / "keys"
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{self.address}"\nroot-certificates = "{secret / "ca.crt"}"\n',
            encoding="utf-8",
        )
        options = {
            "--ssl-ca-certfile": secret / "ca.crt",
            "--ssl-certfile": secret / "server.crt",
            "--ssl-keyfile": secret / "server.key",
            "--database": self.folder / "flower" / "state.db",
            "--host": "127.0.0.1",
            "--port": self.port,
            "--health-server-address": f"127.0.0.1:{free_port()}",
        }
        flags = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        self.start("superlink", "flower-superlink", *_flat(options), *flags)
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            with socket.socket() as probe:
                probe.settimeout(1)
                listens = probe.connect_ex(("127.0.0.1", self.port)) == 0
            if listens and health.serving(str(options["--health-server-address"])):
                return
            if self.processes["superlink"].poll() is not None:
                break
            time.sleep(0.2)
        raise RuntimeError(f"the SuperLink did not start; see {self.folder / 'logs' / 'superlink.log'}")

    def register(self, node: int) -> None:
        """Make a hospital's public key known; only then its node may join."""
        command = [BIN / "flwr", "supernode", "register", self.folder / "keys" / f"node-{node}.pub", CONNECTION]
        for _ in range(ATTEMPTS):
            told = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
            if told.returncode == 0 or "already" in (told.stdout + told.stderr).lower():
                return
            time.sleep(0.5)
        raise RuntimeError(f"node {node} could not be registered: {told.stdout}{told.stderr}")

    def start_node(self, node: int, *, name: str | None = None, **changes: str | None) -> subprocess.Popen[bytes]:
        """Start a hospital's node; ``changes`` replace or, with None, leave out single options."""
        options: dict[str, object] = {
            "root-certificates": self.folder / "keys" / "ca.crt",
            "auth-supernode-private-key": self.folder / "keys" / f"node-{node}",
            "superlink": self.address,
            "host": "127.0.0.1",
            "port": free_port(),
            "node-config": self.node_config(node),
            "health-server-address": f"127.0.0.1:{free_port()}",
        }
        options |= {key.replace("_", "-"): value for key, value in changes.items()}
        given = {f"--{key}": value for key, value in options.items() if value is not None}
        return self.start(name or f"node-{node}", "flower-supernode", *_flat(given))

    def node_config(self, node: int) -> str:
        """What a node is told of itself: where its hospital's file is."""
        own = node if node <= self.nodes else 1  # an imposter calls itself by the first hospital's name
        return f'file="{self.folder / "data" / f"hospital-{own}.csv"}"'

    def start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program in a group of its own, so that it can be stopped with all it started."""
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [BIN / program, *arguments],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o077,  # the SuperLink's database holds what clients report
            )
        self.processes[name] = process
        return process

    def run(self, **config: object) -> subprocess.Popen[bytes]:
        """Start a run, its output in logs/run.log; the process ends with it."""
        told = {"out": str(self.folder / "runs"), "clients": str(self.clients), **config}
        words = " ".join(f"{key}={_toml(value)}" for key, value in told.items())
        return self.start("run", "flwr", "run", str(self.app), CONNECTION, "--stream", "--run-config", words)

    def stop(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop one process and all that it started."""
        process = self.processes.pop(name)
        for step in (how, signal.SIGKILL):
            try:
                os.killpg(process.pid, step)
            except ProcessLookupError:
                break
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                continue
        process.wait()

    def stop_all(self) -> None:
        """Stop everything, the SuperLink last."""
        for name in sorted(self.processes, key=lambda name: name == "superlink"):
            self.stop(name)


def _flat(options: dict[str, object]) -> list[str]:
    return [str(part) for pair in options.items() for part in pair]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def main() -> int:
    """Run it once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=("linear", "network"), default="linear")
    parser.add_argument("--rounds", type=int, help="default: at most 30 exchanges, or 8 rounds of the network")
    parser.add_argument("--resume", action="store_true", help="go on with the newest run that was not finished")
    parser.add_argument("--imposter", action="store_true", help="start a node that is not in the list of clients")
    parser.add_argument("--exclude", default="", metavar="NAME", help="go on without these hospitals")
    chosen = parser.parse_args()
    began = time.time()
    with Loopback(chosen.folder, imposters=int(chosen.imposter)) as deployment:
        print(f"SuperLink at {deployment.address}, {deployment.nodes} SuperNodes; logs in {deployment.folder / 'logs'}")
        log = deployment.folder / "logs" / "run.log"
        rounds = chosen.rounds or (30 if chosen.model == "linear" else 8)
        run = deployment.run(model=chosen.model, rounds=rounds, resume=chosen.resume, exclude=chosen.exclude)
        with log.open(encoding="utf-8", errors="replace") as stream:
            stream.seek(0, os.SEEK_END)
            while run.poll() is None:
                print(stream.read(), end="", flush=True)
                time.sleep(0.5)
            print(stream.read(), end="", flush=True)
    reports = sorted((chosen.folder / "runs").glob("*/report.html"), key=lambda file: file.stat().st_mtime)
    if run.returncode or not reports or reports[-1].stat().st_mtime < began:
        print(f"The run did not end well; see {log}", file=sys.stderr)
        return 1
    print(f"Report: {reports[-1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
