"""Functions for tests that try a table or many seeds in one loop; they add the name of the failed case to the error."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def case(*names: object) -> Iterator[None]:
    """Add the name of the case, such as its seed or its row, to an error of the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"In the case: {', '.join(map(str, names))}")
        raise


def each_case(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Callable[..., Any]], Any]:
    """Run a test function once for each row of a table, all in one test.

    It is written like `pytest.mark.parametrize`. The rows share the fixtures of the test.
    """
    given = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = list(rows)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def test(**fixtures: Any) -> None:
            for row in table:
                values = [row] if len(given) == 1 else list(row)
                with case(*map(_shown, values)):
                    function(**fixtures, **dict(zip(given, values, strict=True)))

        signature = inspect.signature(function)
        fixtures = [each for name, each in signature.parameters.items() if name not in given]
        test.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return test

    return decorate


def _shown(value: object) -> str:
    try:
        return repr(value)[:200]
    except Exception:  # A test may give an object with a failing `repr`.
        return object.__repr__(value)
