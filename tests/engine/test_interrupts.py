"""Deferred interrupts: Ctrl-C is raised once, at the end of the block."""

import signal
import threading

import pytest

from softswitch.engine.loop import defer_interrupts


@pytest.fixture(autouse=True)
def _plain_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_deferred():
    reached = []

    def work():
        with defer_interrupts():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_inner_error_propagates():
    with pytest.raises(ValueError, match="inner error"), defer_interrupts():
        raise ValueError("inner error")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_are_unaffected():
    done = []

    def work():
        with defer_interrupts():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_third_ctrl_c_interrupts():
    reached = []

    def work():
        with defer_interrupts():
            for _ in range(3):
                signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
