"""Tests of `as_python`, which writes a run as a test: the written test runs and passes."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.cases import case
from tests.long_version import IS_LONG

from acorn import File, Image, Run, deny, runs
from acorn._history.saved_form import decode_entries, encode_entry
from acorn.stores import MemoryStore
from acorn.testing.as_python import as_python

AGENTS = '''
from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Any

from pydantic import BaseModel, Field

from acorn import File, Image, ask_human, module, tool
from acorn.testing import Failure, Reply, ScriptedModel, call, finish
from acorn.models.port import RawCall


class Mood(Enum):
    GOOD = "good"


class Place(BaseModel):
    city: str
    zip_code: str | None = Field(default=None, alias="zipCode")


class Question(BaseModel):
    question: str
    place: Place
    tags: list[str] = []
    day: date = date(2026, 1, 2)
    mood: Mood = Mood.GOOD


class Answer(BaseModel):
    answer: str
    day: date = date(2026, 1, 2)
    short: float = Field(default=0.5, alias="shortName")


class Check(module[str, str]):
    """Check a claim."""


class Doubt(module[None, str]):
    """Doubt."""

    max_steps = 2


class Researcher(module[Question, Answer]):
    """Look it up."""

    max_steps = 6
    branches = {"check": Check, "doubt": Doubt}

    @tool
    def search(self, query: str) -> str:
        """Search."""
        return query.upper()

    @tool
    def broken(self) -> str:
        """Never works."""
        raise ValueError("no")


class Plain(module[str, int]):
    """A number."""


class Asking(module[str, str]):
    """Ask."""

    tools = [ask_human]
    max_steps = 4

    @tool(approval=True)
    def pay(self, amount: float) -> str:
        """Pay."""
        return f"paid {amount}"


class Above(module[str, str]):
    """Have it asked."""

    branches = {"asking": Asking}
    max_steps = 3


class Look(BaseModel):
    photo: Image
    papers: list[File] = []


class Seer(module[Look, str]):
    """See."""

    max_steps = 3

    @tool
    def draw(self) -> Image:
        """Draw."""
        return Image.from_bytes(b"\\x89PNG\\r\\n\\x1a\\nother")


class Web(module[str, str]):
    """Search elsewhere."""

    tools = [{"type": "web_search"}]
    max_steps = 3
'''

NASTY = [
    "'''\nimport os\nos._exit(9)\n'''",
    '"""); raise SystemExit(9)  #',
    "\\",
    "\\'",
    "a\r\nb\tc\x00\x1b[31m",
    "\u2028raise\u2029",
    "🦔 ünïcode 日本",
    "{x} %s {{}}",
    "# comment\n\nassert False",
]


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the agents, as a project would have it."""
    name = f"as_python_{re.sub('[^a-z0-9]', '_', tmp_path.name)}"
    (tmp_path / f"{name}.py").write_text(AGENTS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return __import__(name)


def passes(tmp_path: Path, *texts: str, outcome: str | None = None) -> None:
    """Run each text as a test file in one pytest run; all pass unless another outcome is given.

    The short version of the tests starts no process for texts that must pass.
    """
    if outcome is None and not IS_LONG:
        for text in texts:
            runs_here(text)
        return
    files = [f"test_made_{number}.py" for number in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        (tmp_path / file).write_text(text, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), *files]
    # Loading all plugins takes several times as long as the test.
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ended = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    told = f"{texts}\n{ended.stdout}\n{ended.stderr}"
    assert ended.stdout.splitlines()[-1].startswith(f"{outcome or f'{len(texts)} passed'} in "), told


def runs_here(text: str) -> None:
    """Run the texts without a process, for many."""
    names: dict[str, Any] = {"__name__": "made"}
    exec(compile(text, "made.py", "exec"), names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    test()


def question(agents: Any, text: str = "Who?") -> dict[str, Any]:
    return {"question": text, "place": agents.Place(city="Łódź", zipCode="1"), "tags": ["a", "'b'"]}


def test_as_python_of_run_with_tool_calls_and_corrections_writes_passing_test(agents: Any, tmp_path: Path) -> None:
    model = agents.ScriptedModel(
        [
            agents.Reply('Let me "see".') & agents.call("search", query="a") & agents.call("search", query="b"),
            agents.call("broken"),
            agents.Reply("Hm."),
            agents.finish(wrong=1),
            agents.finish(answer="it's fine", day="2026-05-06", shortName=1.5),
        ]
    )
    run = agents.Researcher(model=model).run(**question(agents))
    text = as_python(run)
    assert "call('search', query='a')" in text
    assert "The test calls the real tools: `search`, `broken`." in text
    from_a_store = as_python(Run.from_json(run.to_json()))  # Without its class.
    passes(tmp_path, text, from_a_store)


def test_generated_python_test_fails_after_agent_behavior_changes(agents: Any) -> None:
    model = agents.ScriptedModel([agents.call("search", query="a"), agents.finish(answer="x")])
    text = as_python(agents.Researcher(model=model).run(**question(agents)))
    changed = AGENTS.replace("max_steps = 6", "max_steps = None")
    Path(agents.__file__).write_text(changed, encoding="utf-8")
    importlib.reload(agents)
    with pytest.raises(AssertionError):
        runs_here(text)


def test_as_python_of_run_with_sequential_branches_writes_passing_test(agents: Any, tmp_path: Path) -> None:
    model = agents.ScriptedModel(
        [
            agents.call("check", input="claim"),
            agents.finish("true"),
            agents.call("doubt"),
            agents.call("search", query="in the branch"),
            agents.finish("doubtful"),
            agents.finish(answer="done"),
        ]
    )
    run = agents.Researcher(model=model).run(**question(agents))
    assert len(run.branches) == 2
    passes(tmp_path, as_python(run))


def test_as_python_of_run_with_concurrent_branches_writes_passing_test(agents: Any) -> None:
    def reply(request: Any) -> Any:
        said = str(request.messages[-1]["content"])
        claims = [claim for claim in ("first", "second") if f"<input>{claim}" in said]
        if claims:
            return agents.Reply(calls=agents.finish(f"{claims[0]} is true").calls, delay=0.05)
        if request.messages[-1]["role"] == "tool":
            return agents.finish(answer=" and ".join(m["content"] for m in request.messages if m["role"] == "tool"))
        return agents.call("check", input="first") & agents.call("check", input="second")

    run = agents.Researcher(model=agents.ScriptedModel(reply)).run(**question(agents))
    assert len(run.branches) == 2
    text = as_python(run)
    assert "were concurrent" in text
    for _ in range(3):
        runs_here(text)


def test_as_python_writes_message_text_as_string_literals_only(agents: Any) -> None:
    for text in NASTY:
        script = [
            agents.Reply(text) & agents.call("search", query=text),
            agents.Reply(calls=[agents.RawCall(None, text, text), agents.RawCall(text, "search", '{"query":1')]),
            agents.Reply(calls=[agents.RawCall(None, "search", '{"query":"\\ud800"}')]),
            agents.call("search", **{"not an identifier": text, "_id": text, "class": text}),
            agents.finish(answer=text),
        ]
        with case(text):
            run = agents.Researcher(model=agents.ScriptedModel(script), parse_retries=3).run(**question(agents, text))
            made = as_python(run, settings={"parse_retries": 3})
            made.encode()
            tree = ast.parse(made)
            kinds = {type(node).__name__ for node in tree.body}
            assert kinds <= {"Expr", "Import", "ImportFrom", "FunctionDef"}
            runs_here(made)


def test_as_python_of_hostile_record_imports_only_known_modules(agents: Any) -> None:
    run = agents.Plain(model=agents.ScriptedModel([agents.finish(3)])).run("x")
    for module in ("os\nimport shutil:Evil", "a.b:C; import os", "os:class", "__main__:Main", ":", "x:<locals>.Y"):
        entries = [encode_entry(entry) for entry in run.journal.entries]
        entries[0]["module"] = module
        run.journal.entries[:] = decode_entries(entries)
        made = as_python(run)
        imports = [node for node in ast.walk(ast.parse(made)) if isinstance(node, ast.Import | ast.ImportFrom)]
        known = {"pytest", "pydantic_core", "acorn", "acorn.testing", "your_project"}
        assert {getattr(node, "module", None) or node.names[0].name for node in imports} <= known
        assert "Replace `your_project`" in made


def test_as_python_of_run_with_single_value_input_and_settings_writes_passing_test(agents: Any, tmp_path: Path) -> None:
    run = agents.Plain(model=agents.ScriptedModel([agents.finish("x"), agents.finish(3)]), parse_retries=1).run("a 'b'")
    passes(tmp_path, as_python(run, settings={"parse_retries": 1, "temperature": 0.5}))


def test_as_python_of_continued_conversation_and_of_fork_writes_passing_tests(agents: Any, tmp_path: Path) -> None:
    model = agents.ScriptedModel([agents.call("search", query="a"), agents.finish(answer="x")] * 2)
    agent = agents.Researcher(model=model)
    run = agent.run(**question(agents))
    later = agent.using(history=run).run(**question(agents, "And?"))
    script = agents.ScriptedModel([agents.finish(answer="forked")])
    fork = agents.Researcher(model=script).using(thread=run, before=2).run()
    passes(tmp_path, as_python(later), as_python(fork))


def test_as_python_of_failed_run_writes_test_with_pytest_raises(agents: Any, tmp_path: Path) -> None:
    texts: list[str] = []
    for script, kind in (
        ([agents.finish(wrong=1)] * 3, "ParseError"),
        ([agents.call("search", query="a"), agents.Failure(status=400)], "ModelError"),
        ([agents.Reply(refusal="I will not.")], "ModelError"),
    ):
        agent = agents.Researcher(model=agents.ScriptedModel(script), parse_retries=2)
        with pytest.raises(Exception) as caught:
            agent.run(**question(agents))
        made = as_python(caught.value.run, settings={"parse_retries": 2})  # type: ignore[attr-defined]
        assert f"pytest.raises({kind})" in made
        texts.append(made)
    passes(tmp_path, *texts)


def test_as_python_of_run_with_unanswered_human_request_writes_skipped_test(agents: Any, tmp_path: Path) -> None:
    asks = agents.call("ask_human", question="Which?") & agents.call("ask_human", question="When?")
    agent = agents.Asking(model=agents.ScriptedModel([asks]), store=MemoryStore())
    out = agent("x")
    agent.resume(out.run_id, answers={out.requests[0].id: "red"})
    made = as_python(runs(agent.store).get(out.run_id))
    assert "some requests for human input were not answered" in made
    single = agents.Researcher(model=agents.ScriptedModel([agents.call("search", query="a")]), max_steps=None)
    told = as_python(single.run(**question(agents)), settings={"max_steps": None})
    passes(tmp_path, made, told, outcome="1 passed, 1 skipped")


@pytest.mark.parametrize("answer", [True, False, deny("Too much."), {"approved": True, "arguments": {"amount": 3.0}}])
def test_generated_python_test_repeats_human_answers(agents: Any, answer: Any) -> None:
    script = [agents.call("ask_human", question="Which?"), agents.call("pay", amount=5.0), agents.finish("done")]
    above = [agents.call("asking", input="x"), *script, agents.finish("all done")]
    for cls, replies in ((agents.Asking, script), (agents.Above, above)):
        agent = cls(model=agents.ScriptedModel(replies), store=MemoryStore())
        out = agent("x")
        assert not out.requests[0].choices
        runs_here(as_python(runs(agent.store).get(out.run_id)))  # It pauses, as before.
        for value in ("true", answer):  # A text that looks like an approval is a text.
            out = agent.resume(out.run_id, answer=value)
        run = runs(agent.store).list()[0]
        made = as_python(runs(agent.store).get(run.id), module=run.agent)
        assert "skip" not in made
        runs_here(made)
        with pytest.raises(AssertionError):
            runs_here(made.replace("'all done'", "'other'", 1).replace("'done'", "'other'", 1))


def test_generated_python_test_adds_no_run_to_store(agents: Any, tmp_path: Path) -> None:
    """Check that a class that can ask people, and did not in this run, needs nothing more."""
    agent = agents.Asking(model=agents.ScriptedModel([agents.finish("x")]), store=tmp_path / "runs.db")
    run = agent.run("x")
    runs_here(as_python(run, module=f"{agents.__name__}:Asking"))
    assert len(runs(tmp_path / "runs.db").list()) == 1


def test_as_python_of_run_with_images_and_files_writes_passing_test(agents: Any) -> None:
    photo = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + b"pixels")
    for given in (photo, "https://acorn.invalid/cat.png"):
        agent = agents.Seer(
            model=agents.ScriptedModel([agents.call("draw"), agents.finish("a cat")]), store=MemoryStore()
        )
        run = agent.run(photo=given, papers=[File.from_bytes(b"%PDF-1.4")])
        for each in (run, runs(agent.store).get(run.id), Run.from_json(run.to_json())):
            runs_here(as_python(each))


def test_as_python_of_run_with_hosted_tools_and_reasoning_writes_passing_test(agents: Any) -> None:
    reply = agents.Reply("I looked.", reasoning="Better to look.") & agents.finish("found")
    runs_here(as_python(agents.Web(model=agents.ScriptedModel([reply])).run("look")))


def test_as_python_of_compacted_run_writes_passing_test(agents: Any, tmp_path: Path) -> None:
    def reply(request: Any) -> Any:
        if not request.tools:
            return agents.Reply("In short: nothing.")
        turns.append("")
        return agents.finish(answer="x") if len(turns) > 5 else agents.call("search", query="word " * 200)

    turns: list[str] = []
    settings = {"compact_at": 600, "loop_guard": None, "max_steps": 9}
    run = agents.Researcher(model=agents.ScriptedModel(reply), **settings).run(**question(agents))
    assert any(event.type == "summary" for event in run.thread)
    passes(tmp_path, as_python(run, settings=settings))


def test_as_python_output_equals_expected_source_text(agents: Any) -> None:
    model = agents.ScriptedModel([agents.call("search", query="a"), agents.finish(answer="x")])
    run = agents.Researcher(model=model).run(question="Who?", place=agents.Place(city="Oslo"))
    made = as_python(run).replace(agents.__name__, "project.agents")
    assert made == textwrap.dedent(
        '''\
        """Replay a run of `Researcher`: the model repeats its responses, and the output must match.

        The test calls the real tools: `search`.
        """

        from pydantic_core import to_jsonable_python

        from acorn.testing import ScriptedModel, call, finish
        from project.agents import Researcher


        def test_researcher() -> None:
            model = ScriptedModel(
                [
                    call('search', query='a'),
                    finish(answer='x'),
                ]
            )
            with model, Researcher.override(model=model):
                run = Researcher().run(
                    question='Who?',
                    place={'city': 'Oslo', 'zip_code': None},
                    tags=[],
                    day='2026-01-02',
                    mood='good',
                )
            assert run.stop_reason == 'finish'
            assert to_jsonable_python(run.output, by_alias=False) == {'answer': 'x', 'day': '2026-01-02', 'short': 0.5}
        '''
    )
