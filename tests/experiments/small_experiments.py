"""Tiny experiments for tests of the runner. Each appends a line to the file named by LOG."""

import os
import signal
import time
from pathlib import Path

from matplotlib.figure import Figure

from softswitch_experiments.paper.experiment import Claim, Experiment, Outcome


def note(name):
    with Path(os.environ["LOG"]).open("a") as log:
        log.write(f"{name} {os.getpid()}\n")


def outcome(rows=({"x": 1},)):
    return Outcome(Figure(), {"numbers": rows}, (Claim("it is so", True, "1"), Claim("or so", False, "2")))


def first(scale):
    note("first")
    return outcome([{"seed": seed} for seed in range(scale.seeds)])


def second(scale):
    note("second")
    return outcome()


def bad(scale):
    note("bad")
    raise ArithmeticError("two and two make five")


def killed(scale):
    note("killed")
    os.kill(os.getpid(), signal.SIGKILL)


def after(scale):
    note("after")
    return outcome()


class SlowRows(list):
    """Rows that are slow to write, which leaves an unfinished folder."""

    def __iter__(self):
        for row in super().__iter__():
            note("writing")
            time.sleep(float(os.environ.get("WRITING", "0")))
            yield row


def slow(scale):
    return outcome(SlowRows([{"x": 1}]))


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("first", "the first", first),
        Experiment("second", "another", second),
        Experiment("bad", "fails", bad),
        Experiment("killed", "ends its process", killed, group="a process"),
        Experiment("after", "in the same process", after, group="a process"),
        Experiment("slow", "is slow to write", slow),
    )
}
