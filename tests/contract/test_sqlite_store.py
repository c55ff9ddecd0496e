"""Tests of the SQLite store: ownership, permissions, crashes and versions of its file."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
from tests.cases import case
from tests.commits import begin, birth, change, go_on
from tests.ctrl_c import Strike
from tests.long_version import IS_LONG
from tests.waiting import PATIENCE, comes_true

from acorn import DeclarationError, StoreError
from acorn.stores import MemoryStore
from acorn.stores.lease import this_process
from acorn.stores.open import open_store
from acorn.stores.port import Commit
from acorn.stores.sqlite import SQLiteStore
from acorn.stores.sqlite.connection import file_system, open_file
from acorn.stores.sqlite.statements import TABLES
from acorn.stores.statements import APPLICATION_ID, SCHEMA_VERSION


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    made = SQLiteStore(path)
    yield made
    made.close()


def refusal(path: Path) -> str:
    """Return what a store in this file reads and writes; it leaves the directory unchanged."""
    before = photo(path.parent)
    texts: list[str] = []
    store = SQLiteStore(path)
    acts: list[Callable[[], object]] = [store.list, lambda: begin(store, "r")]
    for act in acts:
        with pytest.raises(StoreError) as caught:
            act()
        texts.append(str(caught.value))
    store.close()
    gc.collect(1)
    assert photo(path.parent) == before
    assert texts[0] == texts[1]
    return texts[0]


def photo(folder: Path) -> dict[str, bytes | None]:
    return {entry.name: entry.read_bytes() if entry.is_file() else None for entry in folder.iterdir()}


# Ownership


def test_sqlite_file_is_readable_by_owner_only(store: SQLiteStore, path: Path) -> None:
    before = os.umask(0)
    try:
        begin(store, "r")
        modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600}


def test_sqlite_file_uses_wal_and_synchronous_full(store: SQLiteStore, path: Path) -> None:
    begin(store, "r")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    assert store._write_connection.use(
        lambda: store._write_connection.connect().execute("PRAGMA synchronous").fetchone()
    ) == (2,)


def test_closed_sqlite_store_leaves_only_database_file(store: SQLiteStore, path: Path) -> None:
    begin(store, "r")
    store.list()
    store.close()
    assert [entry.name for entry in path.parent.iterdir()] == ["runs.db"]
    assert not any(thread.name == "acorn-store" for thread in threading.enumerate())


def test_garbage_collected_sqlite_store_is_closed(path: Path) -> None:
    store = SQLiteStore(path)
    begin(store, "r")
    del store
    gc.collect()
    assert comes_true(lambda: [entry.name for entry in path.parent.iterdir()] == ["runs.db"])


def test_idle_writer_thread_of_sqlite_store_ends_and_restarts_on_commit(store: SQLiteStore) -> None:
    begin(store, "r")
    assert comes_true(lambda: not any(thread.name == "acorn-store" for thread in threading.enumerate()))
    go_on(store, "r", 1)


def test_empty_existing_file_is_initialized_as_store(store: SQLiteStore, path: Path) -> None:
    path.touch()
    begin(store, "r")
    assert [facts.id for facts in store.list()] == ["r"]


def test_file_of_other_format_is_rejected_without_changes(path: Path) -> None:
    path.write_bytes(b"Dear diary, today I went\n" * 400)
    text = refusal(path)
    assert text.startswith(f"{path} is not a store of acorn (")
    assert text.endswith("). Use another file. The file was not changed.")


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_database_of_other_application_is_rejected_without_changes(path: Path, mode: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE runs (id TEXT PRIMARY KEY)")
        connection.commit()
    assert "is not a store of acorn (it belongs to another application)" in refusal(path)


def test_file_of_newer_schema_version_is_rejected_without_changes(store: SQLiteStore, path: Path) -> None:
    begin(store, "r")
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    words = (
        f"{path} has schema version {SCHEMA_VERSION + 1}, but this version of acorn supports only version "
        f"{SCHEMA_VERSION}. Use the version of acorn that created it, or another file. The file was not changed."
    )
    assert refusal(path) == words


def test_truncated_file_is_rejected_without_changes(store: SQLiteStore, path: Path) -> None:
    for number in range(20):
        begin(store, f"r{number}")
    store.close()
    whole = path.read_bytes()
    for length in (1, 50, 100, 600, 4096, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "The file was not changed" in refusal(path), length


def test_commits_to_broken_file_each_raise_their_own_error_object(tmp_path: Path) -> None:
    """Check that each error has its own record: the errors of batch items belong to one run each."""
    (tmp_path / "text.db").write_text("This is no database at all. " * 50)
    broken = SQLiteStore(tmp_path / "text.db")
    late = [broken.commit(Commit("r", this_process(), [change("r", ["0"], born=birth())])) for _ in range(20)]
    errors: list[StoreError] = []
    for commit in late:
        with pytest.raises(StoreError) as caught:
            commit.result()
        errors.append(caught.value)
    assert {type(each) for each in errors} == {StoreError}
    assert len({id(each) for each in errors}) == len(errors)
    assert all(each.__cause__ is not None for each in errors)


def test_damaged_file_raises_error_with_path_and_is_not_changed(store: SQLiteStore, path: Path) -> None:
    for number in range(50):
        begin(store, f"r{number}")
    store.close()
    whole = bytearray(path.read_bytes())
    for start in range(4096, len(whole), 4096):
        whole[start : start + 4096] = os.urandom(4096)
    path.write_bytes(whole)
    damaged = SQLiteStore(path)
    with pytest.raises(StoreError, match=r"runs\.db (is damaged|failed)|Cannot (read or )?write .*runs\.db"):
        damaged.list()
    with pytest.raises(StoreError, match=r"runs\.db (is damaged|failed)|Cannot (read or )?write .*runs\.db"):
        begin(damaged, "r")
    damaged.close()
    assert path.read_bytes() == whole
    assert [entry.name for entry in path.parent.iterdir()] == ["runs.db"]


def test_impossible_store_path_raises_error_with_path(tmp_path: Path) -> None:
    with pytest.raises(
        StoreError, match=r"Cannot create .*runs\.db: the directory '.*missing' does not exist\. Create the directory"
    ):
        SQLiteStore(tmp_path / "missing" / "runs.db").list()
    (tmp_path / "folder").mkdir()
    assert refusal(tmp_path / "folder").endswith("folder is a directory. Use the path of a file as the store.")
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is not a directory"):
        SQLiteStore(tmp_path / "file" / "runs.db").list()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="is not a regular file"):
        SQLiteStore(tmp_path / "pipe").list()


def in_child(script: str, *arguments: object) -> str:
    """Return the output of a separate process."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", script, *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.strip()


NOBODY = """
import os, sys
from tests.commits import begin
from acorn import StoreError
from acorn.stores.sqlite import SQLiteStore
import encodings.idna
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for path in sys.argv[1:]:
    try:
        begin(SQLiteStore(path), "r")
    except StoreError as error:
        print(error)
"""


def test_file_without_permission_raises_error_with_path() -> None:
    with tempfile.TemporaryDirectory() as folder:  # A directory that every user can enter.
        Path(folder).chmod(0o755)
        paths = [Path(folder) / mode / "runs.db" for mode in ("file", "directory")]
        for path, mode, mode_of_parent in zip(paths, (0o444, 0o666), (0o755, 0o555), strict=True):
            path.parent.mkdir()
            store = SQLiteStore(path)
            begin(store, "r")
            store.close()
            path.chmod(mode)
            path.parent.chmod(mode_of_parent)
        first, second, third = in_child(NOBODY, *paths, paths[1].parent / "other.db").splitlines()
        assert "Cannot read and write " in first
        assert "directory" in second  # No log can be created next to it.
        assert "Permission denied" in third
        paths[1].parent.chmod(0o755)


FULL = """
import resource, sys
from tests.commits import begin, go_on
from acorn import StoreError
from acorn.stores.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1])
begin(store, "r")
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
since = 1
try:
    while True:
        go_on(store, "r", since, state="x" * 20_000)
        since += 1
except StoreError as error:
    print(error)
assert len(store.read("r")[0].entries) == since
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
go_on(store, "r", since)
print(len(store.read("r")[0].entries) - since)
"""


def test_full_disk_raises_store_error_and_store_recovers(path: Path) -> None:
    text, rest = in_child(FULL, path).splitlines()
    assert "Cannot read or write " in text
    assert "Check that the disk is not full" in text
    assert rest == "1"


def test_store_file_removed_while_store_is_open_is_created_again(store: SQLiteStore, path: Path) -> None:
    begin(store, "r")
    store.list()
    for entry in path.parent.iterdir():
        entry.unlink()
    since = iter(range(1, 1_000_000))

    def is_refused() -> bool:
        try:
            go_on(store, "r", next(since))
        except StoreError as error:
            return "is no longer in" in str(error)
        return False

    assert comes_true(is_refused)  # A file that existed counts as present for a moment.
    assert comes_true(lambda: store.list() == [])
    begin(store, "r")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (1,)


def test_file_system_returns_type_of_longest_matching_mount() -> None:
    mounts = "proc /proc proc rw 0 0\n/dev/sda / ext4 rw 0 0\nhost:/x /mnt/with\\040blank nfs4 rw 0 0\n"
    assert file_system(Path("/home/me/runs.db"), mounts) == "ext4"
    assert file_system(Path("/mnt/with blank/runs.db"), mounts) == "nfs4"
    assert file_system(Path("/mnt/without/runs.db"), mounts) == "ext4"
    assert file_system(Path("/x"), "") is None


# Crashes

FRAME = 24


def committed(path: Path, commits: int) -> None:
    """Copy a file and its log as a crash would leave them."""
    store = SQLiteStore(path)
    begin(store, "r")
    for since in range(1, commits):
        go_on(store, "r", since, state=f'"{since}"', steps=since)
    live = path.parent / "live"
    live.mkdir()
    for name in ("runs.db", "runs.db-wal"):
        shutil.copy(path.parent / name, live / name)
    store.close()


def assert_holds_a_prefix(folder: Path, most: int) -> int:
    store = SQLiteStore(folder / "runs.db")
    try:
        (kept,) = store.read("r") or (None,)
        if kept is None:
            return 0
        count = len(kept.entries)
        assert list(kept.entries) == [str(number) for number in range(count)]
        assert kept.facts.steps == count - 1
        assert kept.state == ('{"state": 1}' if count == 1 else f'"{count - 1}"')
        assert count <= most
        whole = store._read_connection.use(
            lambda: store._read_connection.connect().execute("PRAGMA integrity_check").fetchone()
        )
        assert whole == ("ok",)
        go_on(store, "r", count)
        return count
    finally:
        store.close()


def test_truncated_write_ahead_log_yields_only_earlier_complete_commits(path: Path, tmp_path: Path) -> None:
    commits = 40 if IS_LONG else 12
    committed(path, commits)
    log = (tmp_path / "live" / "runs.db-wal").read_bytes()
    (size,) = struct.unpack(">I", log[8:12])
    frames = list(range(32, len(log) + 1, FRAME + size))
    seed = random.Random(17)
    cuts = frames + [seed.randrange(len(log) + 1) for _ in range(1000 if IS_LONG else 25)]
    found: dict[int, int] = {}
    for number, cut in enumerate([*cuts, len(log)] if IS_LONG else [*frames[::3], *cuts[len(frames) :], len(log)]):
        folder = tmp_path / f"cut{number}"
        folder.mkdir()
        shutil.copy(tmp_path / "live" / "runs.db", folder / "runs.db")
        (folder / "runs.db-wal").write_bytes(log[:cut])
        found[cut] = assert_holds_a_prefix(folder, commits)
        shutil.rmtree(folder)
    kept = [found[cut] for cut in sorted(found)]
    assert kept == sorted(kept)
    assert kept[-1] == commits
    assert len(set(kept)) > 3


# The schema


def test_failing_statement_during_table_creation_leaves_sqlite_file_empty(path: Path) -> None:
    broken = (*TABLES, "CREATE TABLE runs (x)")
    for _ in range(2):
        with pytest.raises(StoreError, match="already exists"):
            open_file(path, "runs.db", broken)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        assert connection.execute("PRAGMA application_id").fetchone() == (0,)
    with closing(SQLiteStore(path)) as store:
        begin(store, "r")


# Store settings


def test_open_store_called_with_spellings_of_one_path_returns_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("runs.db", "`Desk.store`")
    assert store.name == "runs.db"
    assert open_store(tmp_path / "runs.db", "`Desk.store`") is store
    assert open_store("./runs.db", "`Desk.store`") is store
    monkeypatch.chdir("/")
    begin(store, "r")
    assert (tmp_path / "runs.db").exists()
    store.close()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_store("~/runs.db", "`Desk.store`") is store


def test_open_store_called_with_store_object_returns_that_object() -> None:
    store = MemoryStore()
    assert open_store(store, "`Desk.store`") is store
    assert open_store("memory", "`Desk.store`") is open_store("memory", "`Other.store`")


def test_open_store_called_with_invalid_value_raises_declaration_error() -> None:
    for declared in ("", ":memory:", 3, b"runs.db", MemoryStore, "mysql://me:secret@host/x", "a\0b"):
        with case(declared), pytest.raises(DeclarationError, match=r"`Desk\.store` must be a file path") as caught:
            open_store(declared, "`Desk.store`")
        assert "secret" not in str(caught.value)


def test_run_with_values_of_three_megabytes_is_stored_and_read(store: SQLiteStore) -> None:
    large = "x" * 3_000_000
    changes = [change("r", [large], born=birth(input=large), state=large, record=large)]
    store.commit(Commit("r", this_process(), changes)).result()
    (kept,) = store.read("r")
    assert (kept.entries[0], kept.header.input, kept.state, kept.record) == (large,) * 4


# The memory store


def test_forked_child_process_has_copy_of_memory_store() -> None:
    store = MemoryStore()
    begin(store, "parent")
    pid = os.fork()
    if pid == 0:
        begin(store, "child")
        os._exit(len(store.list()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    assert [facts.id for facts in store.list()] == ["parent"]


COLLECT_DURING_FORK = """
import gc, os
from acorn._base.forks import close_at_fork
from acorn.stores import MemoryStore

class Collector:
    def before_fork(self):
        pass

    def after_fork(self, in_child):
        gc.collect()

gc.disable()
for _ in range(5):
    store = MemoryStore()
    store.list()
    ring = [store]
    ring.append(ring)
collector = Collector()
close_at_fork(collector)
del store, ring
pid = os.fork()
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


def test_fork_while_garbage_collector_deletes_stores_does_not_deadlock() -> None:
    subprocess.run([sys.executable, "-c", COLLECT_DURING_FORK], check=True, timeout=PATIENCE)


# Ctrl-C


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_ctrl_c_at_any_line_of_commit_leaves_store_usable(path: Path, kind: str) -> None:
    """Check that the commit is written or not, and that later commits follow it."""
    with closing(SQLiteStore(path) if kind == "file" else MemoryStore()) as store:
        assert_survives_ctrl_c(store)


def assert_survives_ctrl_c(store: SQLiteStore) -> None:
    begin(store, "r")
    for at in range(1, 1_000_000, 1 if IS_LONG else 3):
        since = len(store.read("r")[0].entries)
        strike = Strike(at)
        with suppress(KeyboardInterrupt):
            strike(partial(go_on, store, "r", since))
        store.renew_lease(this_process(), PATIENCE)
        entries = store.read("r")[0].entries
        assert list(entries) == [str(number) for number in range(len(entries))], strike.where
        assert len(entries) - since in (0, 1), strike.where
        if strike.where is None:
            break


def test_ctrl_c_at_any_line_of_list_leaves_store_usable(store: SQLiteStore) -> None:
    begin(store, "r")
    for at in range(1, 1_000_000, 1 if IS_LONG else 3):
        strike = Strike(at)
        with suppress(KeyboardInterrupt):
            strike(store.list)
        assert [facts.id for facts in store.list()] == ["r"], strike.where
        if strike.where is None:
            break
