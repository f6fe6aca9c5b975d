"""The first signal is a request, Ctrl-C after it an order."""

import signal
from collections.abc import Iterator

import pytest

from mlmcgrad.paper.runs.process import REQUESTS, Signals, Stopped, interruptible


@pytest.fixture(autouse=True)
def terminal() -> Iterator[None]:
    """SIGHUP is not ignored, as it would be under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", REQUESTS)
def test_the_first_signal_is_noted(number: signal.Signals) -> None:
    handler = signal.getsignal(number)
    with Signals() as signals:
        signals.raise_stopped("nothing happened")
        signal.raise_signal(number)
        assert signals.number == number
        with pytest.raises(Stopped, match=f"^{number.name}: half done$") as stopped:
            signals.raise_stopped("half done")
    assert stopped.value.code == 128 + number
    assert signal.getsignal(number) is handler


@pytest.mark.parametrize("number", REQUESTS)
def test_where_work_may_be_left_the_first_one_acts_at_once(number: signal.Signals) -> None:
    def work() -> None:
        with interruptible():
            signal.raise_signal(number)
            raise AssertionError("it went on")

    with Signals() as signals, pytest.raises(Stopped) as stopped:
        work()
    assert stopped.value.code == 128 + number
    assert signals.number == number


def test_a_signal_noted_before_acts_as_soon_as_work_may_be_left() -> None:
    with interruptible():  # without handlers nothing is changed
        pass
    with Signals():
        with interruptible():
            pass
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped, match="SIGTERM"), interruptible():
            pytest.fail("this is not reached")


def test_ctrl_c_after_another_signal_acts_at_once() -> None:
    with Signals():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as interrupt:
            signal.raise_signal(signal.SIGINT)
    assert not isinstance(interrupt.value, Stopped)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_request_that_arrives_twice_is_one(number: signal.Signals) -> None:
    """A shell and the system both send SIGHUP; timeout(1) sends SIGTERM twice."""
    with Signals() as signals:
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert signals.number == number


def test_nohup_stays_in_force() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Signals() as signals:
        signal.raise_signal(signal.SIGHUP)
        signals.raise_stopped("it was noted")
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        assert signals.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
