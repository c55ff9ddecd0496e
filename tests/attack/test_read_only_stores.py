"""Attack: the file of a store, its directory or its medium is read-only."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import acorn
from acorn import StoreError, module
from acorn.cli import main
from acorn.stores import SQLiteStore
from acorn.testing import ScriptedModel, finish

NOBODY = 65534


class Desk(module[str, str]):
    """Answer."""

    model: Any = ScriptedModel(lambda request: finish("good"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a directory that every user can read. The directories of pytest are private."""
    path = Path(tempfile.mkdtemp(prefix="acorn-test-"))
    path.chmod(0o755)
    with closing(SQLiteStore(path / "runs.db")) as store:
        Desk(store=store).using(run_id="run-1")("hello")
    (path / "runs.db").chmod(0o444)
    yield path
    path.chmod(0o755)
    shutil.rmtree(path)


@contextmanager
def unprivileged(folder: Path, mode: int) -> Iterator[None]:
    """Set the mode of a directory, and drop the privileges of root, who may write everything."""
    folder.chmod(mode)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize("mode", [0o555, 0o777])
def test_read_only_store_can_be_listed_and_shown(
    folder: Path, mode: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "runs.db"
    before = path.read_bytes()
    shutil.copy(path, tmp_path / "other.db")
    for words in (["runs"], ["show", "run-1"]):  # Import everything as the user who may read the source files.
        assert main([*words, "--store", str(tmp_path / "other.db")]) == 0
    capsys.readouterr()
    with unprivileged(folder, mode):
        for words in (["runs", "--json"], ["show", "run-1"], ["show", "run-1", "--json"]):
            assert main([*words, "--store", str(path)]) == 0, capsys.readouterr().err
        with closing(SQLiteStore(path)) as store:
            runs = acorn.runs(store)
            assert [run.status for run in runs.list()] == ["done"]
            assert runs.get("run-1").output == "good"
            assert [type(entry).__name__ for entry in runs.follow("run-1")][-1] == "RunFinished"
            assert store.search(["run-1"], "hello") == ["run-1"]
            for write in (lambda: runs.cancel("run-1"), lambda: Desk(store=store)("again")):
                with pytest.raises(StoreError, match="Cannot read and write"):
                    write()
            assert runs.get("run-1").output == "good"
    assert path.read_bytes() == before
    assert mode == 0o777 or [each.name for each in folder.iterdir()] == ["runs.db"]


def test_read_only_store_shows_commits_of_other_user(folder: Path) -> None:
    """The owner writes between two reads of a process that may only read."""
    path = folder / "runs.db"
    with closing(SQLiteStore(path)) as reader:
        for number in range(3):
            with unprivileged(folder, 0o755):
                assert len(acorn.runs(reader).list()) == number + 1
            path.chmod(0o644)
            with closing(SQLiteStore(path)) as writer:
                Desk(store=writer)("more")


def test_read_only_store_with_unreadable_log_raises_store_error_instead_of_old_data(folder: Path) -> None:
    path = folder / "runs.db"
    path.chmod(0o644)
    with closing(SQLiteStore(path)) as store:
        Desk(store=store)("more")
        copy = folder / "copy"
        copy.mkdir()
        for name in ("runs.db", "runs.db-wal"):
            shutil.copy(folder / name, copy / name)
    reader = SQLiteStore(copy / "runs.db")
    with unprivileged(copy, 0o555), pytest.raises(StoreError, match=r"its last commits are in runs\.db-wal"):
        reader.list()
    reader.close()


def test_unreadable_store_raises_store_error(folder: Path) -> None:
    (folder / "runs.db").chmod(0o000)
    with unprivileged(folder, 0o755), pytest.raises(StoreError, match=r"Cannot read .* as this user"):
        SQLiteStore(folder / "runs.db").list()
