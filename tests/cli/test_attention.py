"""A signal is noticed while the main thread is busy outside Python, and Ctrl-C twice ends that."""

import signal
import subprocess
import sys

import pytest

BUSY = """
import hashlib
from mlmcgrad.cli.attention import attentive
from mlmcgrad.runs.signals import Signals
with attentive(), Signals():
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # many minutes, and no handler runs
"""


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noticed_at_once(first: signal.Signals) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=pipe, stderr=pipe, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(first)
        assert child.stderr.readline() == "\n"  # below the progress bar
        said = child.stderr.readline()
        assert said == f"mlmcgrad: {first.name}: stopping; press Ctrl-C again to stop at once\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=20.0) == 130
        assert child.stderr.read() == ""
