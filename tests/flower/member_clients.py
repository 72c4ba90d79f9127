"""Keys, a simulated clock and grids for the tests of client membership."""

from functools import cache
from types import SimpleNamespace

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import softswitch as ss
import softswitch.flower as fl
from flower_clients import quadratic, simulated, zeros
from softswitch.flower import messages, remote, roster

RULE = ss.SoftmaxSGM(alpha=5.0, step_size=0.2, tolerance=0.1)


@cache
def key(i):
    """Return key i in OpenSSH and PEM format."""
    public_key = ec.derive_private_key(1000 + i, ec.SECP384R1()).public_key()
    ssh = public_key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    pem = public_key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    return ssh, pem


def member_list(*numbers):
    """Return the list of these sites with their OpenSSH keys."""
    return {f"site {i}": key(i)[0] for i in numbers}


def make_grid(nodes, app=None, grid=fl.InProcessGrid):
    """Return a grid from {node: (site number, key number or None)}, with PEM keys as from a SuperLink."""
    app = app or simulated(lambda context: quadratic(context.node_config["i"]))
    keys = {node: key(k)[1] for node, (_, k) in nodes.items() if k is not None}
    return grid(app, {node: {"i": i} for node, (i, _) in nodes.items()}, keys=keys)


def run_strategy(grid, rounds=1, method=RULE, **settings):
    """Return a strategy after its run."""
    strategy = fl.SwitchingStrategy(
        method, **{"report_timeout": 0.02, "update_timeout": 0.02, "wait": 0.0, "patience": 10**6, **settings}
    )
    strategy.start(grid, zeros(), rounds)
    return strategy


class Clock:
    """A simulated clock that advances only during sleep."""

    def __init__(self, monkeypatch):
        self.now, self.on_sleep = 0.0, lambda: None
        time = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        for module in (messages, remote, roster):
            monkeypatch.setattr(module, "time", time)

    def sleep(self, seconds):
        assert seconds >= 0
        self.now += max(seconds, 1e-6)
        self.on_sleep()


def events_of_kind(file, *names):
    """Return the events of these kinds in a file as pairs (what, client)."""
    return [(e["what"], e["client"]) for e in fl.read_events(file) if not names or e["what"] in names]
