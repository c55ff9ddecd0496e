"""Tests of tool results like the scalars and arrays of NumPy, which become numbers and lists."""

from __future__ import annotations

import json
from typing import Any

from tests.behaviour.small_programs import read_result
from tests.cases import case


class Number:
    """A scalar like the ones of NumPy."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def item(self) -> Any:
        return self.value


class Array:
    """An array like the ones of NumPy."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def tolist(self) -> Any:
        return self.value

    def item(self) -> Any:
        raise ValueError("can only convert an array of size 1 to a Python scalar")

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, at: int) -> Any:
        return self.value[at]


NUMPY: dict[str, tuple[Any, Any]] = {
    "scalar": (Number(3), 3),
    "float scalar": (Number(0.5), 0.5),
    "bool scalar": (Number(True), True),
    "array": (Array([1, 2]), [1, 2]),
    "array of arrays": (Array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    "in a dict": ({"mean": Number(3), "rows": Array([1])}, {"mean": 3, "rows": [1]}),
    "in a list": ([Number(1), Number(2)], [1, 2]),
    "in an iterator": ((Number(at) for at in (1, 2)), [1, 2]),
    "NaN": (Number(float("nan")), None),
    "array with NaN": (Array([float("nan"), 1.0]), [None, 1.0]),
}


def test_numpy_like_results_become_numbers_and_lists() -> None:
    for name, (value, expected) in NUMPY.items():

        def measure() -> Any:
            """Measure."""
            return value  # noqa: B023

        with case(name):
            assert json.loads(read_result(measure)) == expected
