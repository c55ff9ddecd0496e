"""A note for tests that try a table or many seeds in one loop: it tells which case failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*names: object) -> Iterator[None]:
    """Add the name of the case, such as its seed or its row, to an error of the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"In the case: {', '.join(map(str, names))}")
        raise
