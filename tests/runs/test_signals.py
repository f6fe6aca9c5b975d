"""The first signal is a request, the second an order."""

import signal

import pytest

from mlmcgrad.runs.signals import Signals, Stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted(number: signal.Signals) -> None:
    handler = signal.getsignal(number)
    with Signals() as signals:
        signals.raise_stopped("nothing happened")
        signal.raise_signal(number)
        assert signals.number == number
        with pytest.raises(Stopped, match=f"^{number.name}: half done; .*--resume") as stopped:
            signals.raise_stopped("half done")
    assert stopped.value.code == 128 + number
    assert signal.getsignal(number) is handler


def test_the_second_one_acts_at_once() -> None:
    with Signals():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as interrupt:
            signal.raise_signal(signal.SIGINT)
    assert not isinstance(interrupt.value, Stopped)
