"""Ctrl-C within is told afterwards, once, and never lost."""

import signal
import threading

import pytest

from softswitch.engine.loop import defer_interrupts


@pytest.fixture(autouse=True)
def _plain_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_waits_for_the_end():
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


def test_an_error_within_comes_out():
    with pytest.raises(ValueError, match="of its own"), defer_interrupts():
        raise ValueError("of its own")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_are_let_alone():
    done = []

    def work():
        with defer_interrupts():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_a_third_one_comes_through():
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
