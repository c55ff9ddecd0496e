"""Tests of images, audio and files on the command line, given as a path or a URL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cases import case
from tests.cli.conftest import AGENTS, Acorn

LOOKER = AGENTS / "looker.py"
PNG = b"\x89PNG\r\n\x1a\n." + b"oak" * 9
BASE64 = "b2Frb2Fr"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cat.png").write_bytes(PNG)
    Path("receipt.pdf").write_bytes(b"%PDF-1.4")
    Path("song.mp3").write_bytes(b"ID3...")
    Path("odd.thing").write_bytes(b"?")


def test_media_option_accepts_path_and_url(acorn: Acorn) -> None:
    ended = acorn(
        *("run", LOOKER, "--photo", "cat.png", "--song", "song.mp3", "--papers", "receipt.pdf"),
        *("--papers", "https://example.org/elm.png", "--page.scan", "cat.png", "--page.number", "2"),
    )
    assert ended.code == 0, ended.err
    assert ended.output["saw"] == (
        "<input>\n"
        '  <photo media="1" type="image/png" name="cat.png" />\n'
        '  <song media="2" type="audio/mpeg" name="song.mp3" />\n'
        "  <papers>\n"
        '    <item media="3" type="application/pdf" name="receipt.pdf" />\n'
        '    <item media="4" type="image" />\n'
        "  </papers>\n"
        "  <page>\n"
        '    <scan media="1" type="image/png" name="cat.png" />\n'
        "    <number>2</number>\n"
        "  </page>\n"
        "</input>"
    )


WRONG = [
    (["--photo", "none.png"], "Cannot read `--photo none.png`: No such file or directory"),
    (["--photo", "."], "Cannot read `--photo .`: Is a directory"),
    (["--photo", "receipt.pdf"], "`--photo`: `receipt.pdf` is application/pdf, but must be an image"),
    (
        ["--photo", "odd.thing"],
        "Cannot use the value of `--photo`: the type of `odd.thing` is unknown. Rename the file so that its extension "
        "matches the media type.",
    ),
    (["--photo", "data:image/png;base64,*"], "`--photo` is invalid: the data is not valid base64"),
    (
        ["--photo", "cat.png", "--papers", "odd.thing"],
        "Cannot use the value of `--papers`: the type of `odd.thing` is unknown. Rename the file so that its extension "
        "matches the media type.",
    ),
    ([], "`--photo` is missing (expected an image)"),
]


def test_media_option_with_unreadable_file_exits_with_2(acorn: Acorn) -> None:
    for options, words in WRONG:
        with case(options):
            ended = acorn("run", LOOKER, *options)
            assert (ended.code, ended.out) == (2, "")
            assert words in ended.err


def test_media_path_in_json_is_rejected(acorn: Acorn) -> None:
    Path("input.json").write_text(json.dumps({"photo": "cat.png"}))
    ended = acorn("run", LOOKER, "--input", "input.json")
    assert ended.code == 2
    assert "`photo` in `input.json` is invalid: expected an image" in ended.err


def test_help_of_media_option_contains_accepted_values(acorn: Acorn) -> None:
    ended = acorn("run", LOOKER, "--help")
    assert "image (path or URL)" in ended.out
    assert "audio (path or URL)" in ended.out


@pytest.mark.parametrize("form", [[], ["--xml"]], ids=["tree", "xml"])
def test_views_of_run_with_media_contain_no_base64_data(acorn: Acorn, form: list[str]) -> None:
    made = acorn("run", LOOKER, "--photo", "cat.png", "--store", "runs.db", "--save", "run.json")
    assert made.code == 0, made.err
    assert BASE64 not in made.out + made.err
    (run_id,) = {line.split()[0] for line in acorn("runs", "--store", "runs.db").out.splitlines()[1:]}
    for where in ([run_id, "--store", "runs.db"], ["run.json"]):
        shown = acorn("show", *where, *form)
        assert shown.code == 0, shown.err
        assert BASE64 not in shown.out
    assert Path("run.json").read_text().count(BASE64 * 3) == 1
    assert acorn("show", "run.json", "--json").out.count(BASE64 * 3) == 1


def test_explain_with_media_prints_no_base64_data(acorn: Acorn) -> None:
    told = acorn("explain", LOOKER, "--photo", "cat.png")
    assert '<photo media="1" type="image/png" name="cat.png" />\n' in told.out
    assert "<image/png, 36 bytes, " in told.out
    assert BASE64 not in told.out
    assert BASE64 not in acorn("explain", LOOKER, "--json", "--photo", "cat.png").out


def test_show_prints_tool_media_without_base64_data(acorn: Acorn, tmp_path: Path) -> None:
    (tmp_path / "snapper.py").write_text(SNAPPER, encoding="utf-8")
    ended = acorn("run", "snapper.py", "--store", "runs.db")
    assert 'snap() -> {"media":1,"type":"image/png"}' in ended.err
    assert BASE64 not in ended.err
    run = json.loads(acorn("runs", "--store", "runs.db", "--json").out)[0]["id"]
    shown = acorn("show", run, "--store", "runs.db").out
    assert '{"media":1,"type":"image/png"}\n' in shown
    assert "image_url" not in shown


SNAPPER = """
from acorn import Image, module, tool
from acorn.testing import ScriptedModel, call, finish


@tool
def snap() -> Image:
    return Image.from_bytes(b"\\x89PNG\\r\\n\\x1a\\n." + b"oak" * 9)


class Snapper(module[None, str]):
    tools = [snap]
    max_steps = 3
    model = ScriptedModel([call("snap"), finish("seen")])
"""
