"""Keys, a clock that does not depend on the machine, and clients that misbehave, for tests of who takes part."""

from functools import cache
from types import SimpleNamespace

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

import softswitch as ss
import softswitch.flower as fl
from flower_clients import quadratic, simulated, zeros
from softswitch.flower import exchange, remote, roster

RULE = ss.SoftmaxSGM(alpha=5.0, step_size=0.2, tolerance=0.1)


@cache
def key(i):
    """Key i, as OpenSSH and as PEM."""
    own = ec.derive_private_key(1000 + i, ec.SECP384R1()).public_key()
    ssh = own.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    pem = own.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    return ssh, pem


def listed(*numbers):
    """The list of these sites, by OpenSSH keys."""
    return {f"site {i}": key(i)[0] for i in numbers}


def grid_of(nodes, app=None, grid=fl.InProcessGrid):
    """A grid from {node: (site's number, key's number or None)}; the keys are told in PEM, as a SuperLink does."""
    app = app or simulated(lambda context: quadratic(context.node_config["i"]))
    keys = {node: key(k)[1] for node, (_, k) in nodes.items() if k is not None}
    return grid(app, {node: {"i": i} for node, (i, _) in nodes.items()}, keys=keys)


def start(grid, rounds=1, method=RULE, **settings):
    """A strategy after its run."""
    strategy = fl.SwitchingStrategy(
        method, **{"report_timeout": 0.02, "update_timeout": 0.02, "wait": 0.0, "patience": 10**6, **settings}
    )
    strategy.start(grid, zeros(), rounds)
    return strategy


class Clock:
    """Time that goes by only where somebody waits."""

    def __init__(self, monkeypatch):
        self.now, self.at_every_pause = 0.0, lambda: None
        own = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        for module in (exchange, remote, roster):
            monkeypatch.setattr(module, "time", own)

    def sleep(self, seconds):
        assert seconds >= 0
        self.now += max(seconds, 1e-6)
        self.at_every_pause()


def kinds(file, *names):
    """The events of a file as pairs (what, client), those of some kinds."""
    return [(e["what"], e["client"]) for e in fl.read_events(file) if not names or e["what"] in names]
