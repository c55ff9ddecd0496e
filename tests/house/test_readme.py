"""The README's code runs as it is written, but for the model, which is a script here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from acorn import listen, module
from acorn.testing import ScriptedModel, call, finish

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def answer() -> ScriptedModel:
    return ScriptedModel([call("search", query="Python", limit=1), finish(answer="Guido van Rossum", confidence=0.9)])


def run(block: str, names: dict[str, Any]) -> None:
    names["__name__"] = "__main__"
    names["print"] = lambda *_, **__: None
    exec(compile(re.sub(r'    model = ".*"', "    model = MODEL", block), "README.md", "exec"), names)


def test_the_first_agent_of_the_readme_answers() -> None:
    names: dict[str, Any] = {"MODEL": answer()}
    run(BLOCKS[0], names)
    assert names["result"] == names["Answer"](answer="Guido van Rossum", confidence=0.9)


def test_the_sentiment_agent_of_the_readme_answers() -> None:
    names: dict[str, Any] = {"MODEL": ScriptedModel([finish(sentiment="positive", confidence=1.0)])}
    run(BLOCKS[1], names)
    assert issubclass(names["Sentiment"], module)


def test_the_test_of_the_readme_passes() -> None:
    names: dict[str, Any] = {"MODEL": answer()}
    run(BLOCKS[0], names)
    run(BLOCKS[2], names)


def test_the_calls_of_the_readme_work() -> None:
    names: dict[str, Any] = {"MODEL": answer()}
    run(BLOCKS[0], names)
    replies = [finish(answer="yes", confidence=1.0)] * 3
    names["Researcher"].model = ScriptedModel(replies)
    run(BLOCKS[3], names)
    assert names["run"].output.answer == "yes"


def test_the_hooks_and_branches_of_the_readme_can_be_declared() -> None:
    names: dict[str, Any] = {"MODEL": answer()}
    run(BLOCKS[0], names)
    run(BLOCKS[4], names)
    names["Careful"](model=answer())(question="Who created Python?")


def test_the_agent_of_the_readme_that_is_a_tool_is_called_and_heard() -> None:
    names: dict[str, Any] = {"MODEL": answer()}
    run(BLOCKS[0], names)
    done = finish(answer="He did.", confidence=1.0)
    names["MODEL"] = ScriptedModel([call("researcher", question="Who created Python?"), done])
    names["Researcher"].model = answer()
    heard: list[Any] = []
    with listen(heard.append):
        run(BLOCKS[5], names)
    assert len({entry.run_id for entry in heard}) == 2
    assert len(BLOCKS) == 6
