"""Attack: random bytes of a store's file are corrupted."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.long_version import IS_LONG

import acorn
from acorn import Paused, StoreError, module, tool
from acorn.stores import SQLiteStore
from acorn.testing import ScriptedModel, call, finish

FILES = 150 if IS_LONG else 12
_SLOWEST = 20.0
"""The seconds after which an operation counts as hanging."""


@tool(approval=True)
def pay(order: str) -> str:
    """Pay."""
    return f"paid {order}"


@tool
def look() -> str:
    """Look."""
    return "seen " * 40


class Desk(module[str, str]):
    """Help."""

    model: Any = ScriptedModel(lambda request: finish("good"))
    tools = [pay, look]
    max_steps = 9


def desk(store: SQLiteStore) -> Desk:
    return Desk(store=store, model=ScriptedModel([call("look"), call("pay", order="17"), finish("good")], by_turn=True))


def fill(path: Path) -> None:
    """Write finished runs, a paused run and a queued run to a new store."""
    with closing(SQLiteStore(path)) as store:
        for number in range(6):
            Desk(store=store).using(run_id=f"done-{number}")(f"question {number}")
        assert isinstance(desk(store).using(run_id="paused")("please"), Paused)
        Desk(store=store).using(run_id="queued", deliver=False).submit("later")


def resume_paused(store: SQLiteStore) -> object:
    (request,) = store.requests("paused")
    return desk(store).resume("paused", answers={request.id: True})


OPERATIONS: dict[str, Callable[[SQLiteStore], object]] = {
    "list": lambda store: sorted((run.id, run.status) for run in acorn.runs(store).list()),
    "get": lambda store: [acorn.runs(store).get(f"done-{number}").output for number in range(6)],
    "follow": lambda store: [type(entry).__name__ for entry in acorn.runs(store).follow("done-1")],
    "requests": lambda store: [(request.tool, request.arguments) for request in store.requests()],
    "start": lambda store: Desk(store=store).using(run_id="new")("now"),
    "repeat": lambda store: Desk(store=store).using(run_id="done-2")("question 2"),
    "resume": resume_paused,
}


def corrupt(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(path.read_bytes())
    page = 4096 * chance.randrange(len(data) // 4096)
    match seed % 3:
        case 0:  # Single bytes anywhere.
            for _ in range(chance.choice([1, 8, 64])):
                data[chance.randrange(len(data))] = chance.randrange(256)
        case 1:  # A part of one page.
            start = page + chance.randrange(4000)
            data[start : start + 96] = chance.randbytes(96)
        case _:  # A whole page of zeros or noise.
            data[page : page + 4096] = bytes(4096) if chance.random() < 0.5 else chance.randbytes(4096)
    path.write_bytes(data)


def is_unnoticed(answer: object, right: object) -> bool:
    """Return whether only characters inside values differ. A SQLite file has no checksums that could show this."""
    one, other = repr(answer), repr(right)
    return len(one) == len(other) and sum(a != b for a, b in zip(one, other, strict=True)) <= 3


def test_operation_on_corrupted_store_gives_right_answer_or_store_error(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    whole = tmp_path / "whole.db"
    fill(whole)
    shutil.copy(whole, tmp_path / "control.db")
    with closing(SQLiteStore(tmp_path / "control.db")) as store:
        right = {name: operation(store) for name, operation in OPERATIONS.items()}
    answers = errors = unnoticed = 0
    for seed in range(FILES):
        for name, operation in OPERATIONS.items():
            path = tmp_path / f"{seed}-{name}.db"
            shutil.copy(whole, path)
            corrupt(path, seed)
            start = time.monotonic()
            with case(seed, name):
                try:
                    with closing(SQLiteStore(path)) as store:
                        answer = operation(store)
                    if answer == right[name]:
                        answers += 1
                    else:
                        assert is_unnoticed(answer, right[name]), answer
                        unnoticed += 1
                except StoreError:
                    errors += 1
                assert time.monotonic() - start < _SLOWEST
            for each in tmp_path.glob(f"{path.name}*"):
                each.unlink()
    assert answers
    assert errors
    assert unnoticed <= answers / 50
    told = f"{answers} right answers, {errors} errors, {unnoticed} with another character in a value"
    record_property("tried", f"{FILES} corrupted files × {len(OPERATIONS)} operations: {told}")


@pytest.mark.parametrize("size", [1, 15, 16, 100, 4095, 5000])
def test_truncated_store_raises_store_error(tmp_path: Path, size: int) -> None:
    path = tmp_path / "runs.db"
    fill(path)
    path.write_bytes(path.read_bytes()[:size])
    with closing(SQLiteStore(path)) as store, pytest.raises(StoreError):
        store.list()
