"""Tests of targets: the command line finds the module of a target and reports errors in its file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.cases import case
from tests.cli.conftest import AGENTS, Acorn

ONE = """
from acorn import module
from acorn.testing import ScriptedModel, finish

class Only(module):
    model = ScriptedModel([finish(result="fine")])
    final_output = str
"""
TWO = f"""{ONE}
class Helper(module):
    final_output = str
"""


def write(directory: Path, name: str, text: str) -> Path:
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def test_target_file_with_one_agent_class_needs_no_class_name(acorn: Acorn, tmp_path: Path) -> None:
    assert acorn("run", write(tmp_path, "one.py", ONE)).output == "fine"


def test_target_file_name_that_is_not_python_identifier_is_accepted(acorn: Acorn, tmp_path: Path) -> None:
    assert acorn("run", write(tmp_path, "my-agent.py", ONE)).output == "fine"


def test_target_file_named_like_standard_library_module_is_accepted(acorn: Acorn, tmp_path: Path) -> None:
    assert acorn("run", write(tmp_path, "json.py", ONE)).output == "fine"
    assert "tmp" not in str(sys.modules["json"].__file__)


def test_target_file_with_one_agent_and_its_branch_class_needs_no_class_name(acorn: Acorn, tmp_path: Path) -> None:
    text = TWO.replace("class Only(module):", "class Only(module):\n    branches = {}").replace(
        "class Helper", "class Other"
    )
    text += "\nOnly.branches = {'other': Other}\n"
    assert acorn("run", write(tmp_path, "two.py", text)).output == "fine"


def test_target_file_with_two_agent_classes_requires_class_name(acorn: Acorn, tmp_path: Path) -> None:
    file = write(tmp_path, "two.py", TWO)
    ended = acorn("run", file)
    assert ended.code == 2
    assert (
        ended.err
        == f"error: `{file}` defines several modules. Use one of these targets: `{file}:Only`, `{file}:Helper`.\n"
    )
    assert acorn("run", f"{file}:Only").output == "fine"


def test_target_that_names_agent_instance_is_accepted(acorn: Acorn) -> None:
    assert acorn("run", f"{AGENTS / 'ends.py'}:fine").output == {"age": 7}


def test_target_module_is_found_in_working_directory(
    acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "acorn_cli_package/__init__.py", "")
    write(tmp_path, "acorn_cli_package/agents.py", ONE)
    monkeypatch.chdir(tmp_path)
    assert acorn("run", "acorn_cli_package.agents").output == "fine"
    assert acorn("run", "acorn_cli_package.agents:Only").code == 1  # Its script is used up.


def test_target_file_imports_files_of_its_directory(acorn: Acorn, tmp_path: Path) -> None:
    write(tmp_path, "acorn_cli_neighbour.py", "ANSWER = 'near'\n")
    text = ONE.replace('"fine"', "acorn_cli_neighbour.ANSWER").replace(
        "from acorn import", "import acorn_cli_neighbour\nfrom acorn import"
    )
    assert acorn("run", write(tmp_path, "with_neighbour.py", text)).output == "near"


def test_target_file_prints_are_written_to_stderr(acorn: Acorn, tmp_path: Path) -> None:
    ended = acorn("run", write(tmp_path, "loud.py", ONE + "\nprint('imported')\n"))
    assert ended.output == "fine"
    assert "imported" in ended.err


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("x = 1\nx = (\n", 2, "SyntaxError: '(' was never closed"),
        ("\nimport acorn\n\nx = nowhere\n", 4, "NameError: name 'nowhere'"),
        ("import no_such_thing_at_all\n", 1, "ModuleNotFoundError: No module named"),
        ("import skimage_tools_nowhere\n", 1, "ModuleNotFoundError: No module named 'skimage_tools_nowhere'"),
        ("from acorn import module\n\nclass A(module):\n    temperature = 9\n", 3, "`A.temperature` must be"),
        ("import sys\nsys.exit(3)\n", 2, "the code ends the program. Put the code below"),
    ],
)
def test_unusable_target_file_exits_with_2_and_line_number(
    acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, message: str
) -> None:
    write(tmp_path, "bad.py", text)
    monkeypatch.chdir(tmp_path)
    ended = acorn("run", "bad.py")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: bad.py:{line}: Cannot import `bad.py`: {message}")
    assert ended.err.count("\n") == 1


def test_target_file_without_agent_class_exits_with_2(acorn: Acorn, tmp_path: Path) -> None:
    ended = acorn("run", write(tmp_path, "empty.py", "x = 1\n"))
    assert ended.code == 2
    assert "defines no module. Add a class that inherits from `acorn.module`" in ended.err


def test_error_in_file_imported_by_target_file_is_printed_with_line_number(
    acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "acorn_cli_broken.py", "\n\n1 / 0\n")
    write(tmp_path, "importing.py", "import acorn_cli_broken\n")
    monkeypatch.chdir(tmp_path)
    assert acorn("run", "importing.py").err.startswith("error: acorn_cli_broken.py:3: ")


@pytest.mark.parametrize("words", [["--debug", "bad.py"], ["bad.py", "--debug"]])
def test_debug_option_prints_traceback_of_error_in_target_file(
    acorn: Acorn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    write(tmp_path, "bad.py", "def f():\n    return nowhere\n\nf()\n")
    monkeypatch.chdir(tmp_path)
    ended = acorn("run", *words)
    assert "Traceback (most recent call last)" in ended.err
    assert "return nowhere" in ended.err
    assert ended.err.splitlines()[-1].startswith("error: bad.py:2: ")


def test_missing_target_exits_with_2_and_one_line_error(acorn: Acorn) -> None:
    for target, message in [
        ("nowhere.py", "There is no file `nowhere.py`"),
        ("nowhere.py:Agent", "There is no file `nowhere.py`"),
        (str(AGENTS / "end.py"), f"There is no file `{AGENTS / 'end.py'}`. Did you mean `{AGENTS / 'ends.py'}`?"),
        ("nowhere/agent.py", "There is no file `nowhere/agent.py`. Check the path.\n"),
        ("acorn_cli_no_module", "There is no Python module `acorn_cli_no_module`"),
        ("acorn.no_such_part", "There is no Python module `acorn.no_such_part`"),
        (f"{AGENTS / 'ends.py'}:Nope", "has no `Nope`. It has these modules: `Base`, `Fine`"),
        (f"{AGENTS / 'ends.py'}:search", "has a `search` that is not a module"),
        (f"{AGENTS / 'ends.py'}:NeedsMore", "`NeedsMore()` failed: TypeError:"),
        (f"{AGENTS / 'ends.py'}:NoModel", "`NoModel.model` is not set"),
        (str(AGENTS), "is a directory. Use the path of a Python file"),
        (".", "`.` is a directory. Use the path of a Python file"),
        ("agent.py:", "`agent.py:` has no class name. Add one after the colon, or remove the colon"),
        (f"{AGENTS / 'odd.py'}:NotThere", "`NotThere.initial_input` refers to a class that is not defined: "),
        (f"{AGENTS / 'odd.py'}:SpoiltByInit", "`SpoiltByInit.temperature` must be a number from 0 to 2"),
    ]:
        with case(target):
            ended = acorn("run", target)
            assert ended.code == 2
            assert message in ended.err
            assert ended.err.count("\n") == 1
