"""Tests of XML round trips: random values of random classes are equal after encoding in any style and decoding.

The generator marks values that XML cannot represent with a reason; values that JSON cannot represent are found by
trying. The test counts, reports and limits both. All other values must be equal and of equal types.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ValidationError
from tests.long_version import IS_LONG
from tests.unit.xml_schemas import IF_WRITTEN, NONE_OMITTED, Made, clean, contents, is_object, some_shape

from acorn._formats.xml.decode import decode_xml
from acorn._formats.xml.encode import XmlStyle, encode_xml

SCHEMAS = 12_000 if IS_LONG else 200
VALUES = 5

STYLES = [
    XmlStyle(),
    XmlStyle(description_format="comment"),
    XmlStyle(descriptions=False),
    XmlStyle(include_none=True),
    XmlStyle(description_format="comment", include_none=True),
]

JSON_TOO = "JSON does not hold it either"


def same(left: Any, right: Any) -> bool:
    """Compare values by type: 1 is not True and not 1.0."""
    if type(left) is not type(right):
        return False
    if is_object(left):
        return same(contents(left), contents(right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(item, right[key]) for key, item in left.items())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(same(*pair) for pair in zip(left, right, strict=True))
    if isinstance(left, set | frozenset):
        return left == right and Counter(map(type, left)) == Counter(map(type, right))
    return bool(left == right)


def holds_in_json(instance: BaseModel) -> bool:
    try:
        found = instance.model_dump_json(by_alias=False, warnings=False)
        return same(type(instance).model_validate_json(found, by_alias=False, by_name=True), instance)
    except ValueError:
        return False


def reason_to_skip(made: Made, expected: BaseModel, style: XmlStyle) -> str | None:
    for reason in sorted(made.reasons):
        if reason.endswith(IF_WRITTEN) and not style.include_none:
            continue
        if reason == NONE_OMITTED and style.include_none:
            continue
        return reason
    return None if holds_in_json(expected) else JSON_TOO


def test_random_values_are_equal_after_xml_round_trip(record_property: Callable[[str, object], None]) -> None:
    skipped: Counter[str] = Counter()
    tried = 0
    for seed in range(SCHEMAS):
        rng = random.Random(seed)
        shape, make = some_shape(rng)
        for _ in range(VALUES):
            made = make(rng)
            expected = clean(made.value)
            style = rng.choice(STYLES)
            tried += 1
            if reason := reason_to_skip(made, expected, style):
                skipped[reason] += 1
                continue
            document = encode_xml(made.value, "output", style)
            try:
                found: Any = decode_xml(document, shape, "output")
            except ValidationError as error:
                found = error
            assert same(found, expected), f"seed {seed}\n{expected!r}\n{found!r}\n{document}"
    record_property("tried", f"{tried:,} random values to XML and back, {skipped.total() / tried:.1%} of them skipped")
    assert skipped.total() < 0.05 * tried
