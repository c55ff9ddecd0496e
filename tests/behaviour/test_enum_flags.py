"""Tests of enum flags in inputs and in XML answers: a combination of members is a value."""

from __future__ import annotations

import enum
import re
from typing import Any

from tests.behaviour.conftest import Script
from tests.cases import each_case

from acorn import module


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Mode(enum.IntFlag):
    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2.5


@each_case(
    ("kind", "value"),
    [
        (Access, Access.READ),
        (Access, Access.READ | Access.WRITE),
        (Access, Access(0)),
        (Mode, Mode.READ | Mode.WRITE),
        (Level, Level.HIGH),
        (Size, Size.LARGE),
        (list[Access], [Access.READ, Access.READ | Access.WRITE]),
        (Access | None, Access.READ | Access.WRITE),
        (dict[str, Access], {"a": Access.READ | Access.WRITE}),
    ],
)
def test_flag_of_input_is_read_from_the_same_xml(script: Script, kind: Any, value: Any) -> None:
    class Echo(module):
        initial_input = [("access", kind)]
        final_output = [("access", kind)]

    def reply(request: Any) -> str:
        document = request.messages[0]["content"]
        return "Hm." if len(request.messages) == 1 else re.sub(r"\binput>", "output>", document)

    agent = Echo(model=script(reply, forces=False), parse_retries=1)
    assert agent(access=value).access == value
