"""Tests of the help of acorn, of its commands, and of any module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cases import case
from tests.cli.conftest import AGENTS, Acorn

from acorn import __version__ as version

ECHO = AGENTS / "echo.py"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")


def test_help_of_agent_lists_each_input_field(acorn: Acorn) -> None:
    ended = acorn("run", f"{ECHO}:Kinds", "--help")
    assert ended.code == 0
    assert ended.err == ""
    lines = {line.split()[1]: line for line in ended.out.splitlines() if line.startswith("│ --")}
    assert "Say it again." in ended.out
    assert "Text in [bold]brackets[/bold] stays as it is." in ended.out
    assert "Some text in [red]brackets[/red]" in lines["--text"]
    assert "[default: nothing]" in ended.out
    assert "integer between 1 and 10" in lines["--count"]
    assert "red|green" in lines["--color"]
    assert "calm|wild" in lines["--mood"]
    assert "1|2" in lines["--size"]
    assert "--loud / --no-loud" in lines["--loud"]
    assert "date as YYYY-MM-DD" in lines["--day"]
    assert "Where somebody lives." in lines["--address"]
    assert "The town" in lines["--address.city"]
    assert "list of strings; repeat it" in lines["--tags"]
    assert lines.keys() >= {"--two-words", "--model", "--input", "--json", "--save", "--debug", "--help"}
    assert "--tree.children.name" not in lines  # An endless tree.


def test_help_marks_required_fields(acorn: Acorn) -> None:
    assert acorn("run", f"{ECHO}:Needs", "--help").out.count("[required]") == 2


def test_help_of_agent_with_single_value_input_lists_positional_argument(acorn: Acorn) -> None:
    out = acorn("run", f"{ECHO}:Plain", "--help").out
    assert "Plain INPUT [OPTIONS]" in out
    assert "--result" not in out
    assert "Numbers INPUT... [OPTIONS]" in acorn("run", f"{ECHO}:Numbers", "-h").out


def test_help_of_agent_with_dataclass_input_lists_its_fields(acorn: Acorn) -> None:
    lines = acorn("run", f"{ECHO}:Dots", "--help").out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("│ --")][:2] == ["--x", "--y"]


def test_help_lists_prefixed_option_if_field_has_same_name(acorn: Acorn) -> None:
    out = acorn("run", f"{ECHO}:Clash", "--acorn-help").out
    assert "--acorn-model" in out
    assert "--acorn-help" in out
    assert "--acorn-debug" not in out
    assert acorn("run", f"{ECHO}:Clash", "-h").out == out


def test_help_lists_input_field_named_like_acorn_option(acorn: Acorn) -> None:
    lines = acorn("run", f"{ECHO}:Prefixed", "--help").out.splitlines()
    names = [line.split()[1] for line in lines if line.startswith("│ --")]
    assert names[:5] == ["--model", "--acorn_model", "--save", "--no-save", "--acorn-model"]
    assert "--save / --no-save" not in "".join(lines)


def test_help_lists_discriminator_values_of_union_field(acorn: Acorn) -> None:
    lines = acorn("run", f"{ECHO}:Kinds", "--help").out.splitlines()
    assert "cat|dog" in next(line for line in lines if "--pet.kind" in line)


def test_help_describes_model_option(acorn: Acorn) -> None:
    for words in (["run", "--help"], ["run", f"{ECHO}:Kinds", "--help"]):
        assert "It replaces the agent's model and the model's settings" in " ".join(
            acorn(*words).out.replace("│", " ").split()
        )


def test_help_of_acorn_lists_commands(acorn: Acorn) -> None:
    for words in [[], ["--help"], ["-h"]]:
        with case(words):
            ended = acorn(*words)
            assert ended.code == 0
            for command in ("run", "show", "pull", "new"):
                assert f"│ {command} " in ended.out


def test_help_of_each_command_prints_usage(acorn: Acorn) -> None:
    for command in ["run", "show", "pull", "new"]:
        with case(command):
            ended = acorn(command, "--help")
            assert ended.code == 0
            assert f"Usage: acorn {command}" in ended.out


def test_version_option_prints_version(acorn: Acorn) -> None:
    assert acorn("--version").out == f"acorn {version}\n"


def test_wrong_usage_exits_with_2_and_one_line_error(acorn: Acorn) -> None:
    for words, message in [
        (["nope"], "No such command 'nope'"),
        (["--nope"], "No such option: --nope"),
        (["run"], "Missing argument"),
        (["run", "--nope", "x.py"], "No such option: --nope. Use `acorn run --help` for help."),
        (["run", "--jsn", "x.py"], "No such option: --jsn (Possible options: --json)"),
        (["new"], "Missing argument 'NAME'"),
        (["show", "a", "b"], "unexpected extra argument"),
    ]:
        with case(words):
            ended = acorn(*words)
            assert ended.code == 2
            assert message in ended.err
            assert ended.err.startswith("error: ")
            assert ended.err.count("\n") == 1


def test_help_does_not_import_heavy_packages() -> None:
    script = (
        "import sys; from acorn.cli import main; code = main(sys.argv[1:]); "
        "print([name for name in ('litellm', 'openai', 'httpx', 'xllamacpp') if name in sys.modules], code)"
    )
    words = ["run", str(ECHO) + ":Plain", "hello"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stderr


def test_acorn_script_and_python_m_acorn_both_print_version(tmp_path: Path) -> None:
    for command in ([sys.executable, "-m", "acorn"], [str(Path(sys.executable).parent / "acorn")]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, cwd=tmp_path, timeout=60)
        assert (done.returncode, done.stdout[:6]) == (0, "acorn ")
