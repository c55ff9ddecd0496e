"""Tests of the comparison benchmark without timing: its output, its server, and the programs of acorn."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from peers import chart, shown, table
from peers.environments import CONTENDERS, Contender
from peers.run import COMPARED, Process, serving, take, without_paths
from peers.tasks import MARK, WORKS, answer, pieces, question, report, requests_of
from tests.cases import case
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def row(title: str, scale: float, *, ours: bool = False, **none: str) -> dict[str, Any]:
    cells: dict[str, Any] = {work: {"cpu": 0.01 * scale, "wall": 0.02 * scale, "peak": 50.0} for work in WORKS}
    cells |= {work: {"none": reason} for work, reason in none.items()}
    return {"title": title, "ours": ours, "versions": {"thing": "1.2"}, "cells": cells}


FIGURES: dict[str, Any] = {
    "date": "2026-01-02",
    "python": "3.11.0",
    "rounds": 3,
    "contenders": {
        "acorn_native": row("acorn & co", 0.5, ours=True),
        "raw_httpx": row("raw httpx", 1),
        "slow": row("slow", 20, loop50="no tool loop", loop200="no tool loop", stream100="over 60 s"),
        "gone": {
            "title": "gone",
            "ours": False,
            "versions": {},
            "cells": {w: {"none": "cannot be installed"} for w in WORKS},
        },
    },
}


def line_of(text: str, title: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {title} "))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_benchmark_table_contains_ratios_and_reason_for_each_missing_figure() -> None:
    text = table.whole(FIGURES)
    assert line_of(text, "**acorn & co**")[1] == "0.50"
    slow = line_of(text, "slow")
    assert slow[1 + list(WORKS).index("single")] == "20.0"
    assert slow[1 + list(WORKS).index("stream100")] == "over 60 s"
    mark = slow[1 + list(WORKS).index("loop50")].removeprefix("- ")
    assert f"{mark} no tool loop" in text
    assert "cannot be installed" in text
    assert "- gone: not installed" in text


def test_benchmark_table_in_readme_is_replaced_between_its_markers() -> None:
    readme = f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n"
    once = table.into(readme, table.short(FIGURES))
    assert once.startswith(f"before\n{table.BEGIN}\n")
    assert once.endswith(f"{table.END}\nafter\n")
    assert "old" not in once
    assert "**acorn & co**" in once
    assert table.into(once, table.short(FIGURES)) == once
    with pytest.raises(ValueError, match="lacks the marks"):
        table.into("no marks", "")


def test_benchmark_chart_contains_each_figure_with_accessible_text() -> None:
    tree = ElementTree.fromstring(chart.svg(FIGURES))
    assert tree.get("role") == "img"
    told = {each.get("id"): each.text or "" for each in tree if each.tag in (f"{SVG}title", f"{SVG}desc")}
    assert set((tree.get("aria-labelledby") or "").split()) == set(told)
    assert "acorn & co: single turn 0.50" in told["about"]
    dots = tree.findall(f".//{SVG}circle")
    assert len(dots) == sum("cpu" in c["cells"][w] for c in FIGURES["contenders"].values() for w in chart.PANELS)
    width, height = map(float, (tree.get("viewBox") or "").split()[2:])
    assert all(0 < float(dot.get("cx", 0)) < width and 0 < float(dot.get("cy", 0)) < height for dot in dots)
    assert "prefers-color-scheme: dark" in (tree.findtext(f"{SVG}style") or "")


def test_benchmark_tables_in_docs_match_stored_figures() -> None:
    figures = json.loads((ROOT / "bench" / "peers" / "figures.json").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table.into(readme, table.short(figures)) == readme
    why = shown.PAGE.read_text(encoding="utf-8")
    assert table.into(why, table.beside(figures, COMPARED)) == why
    assert (ROOT / "docs" / "figures.md").read_text(encoding="utf-8") == table.whole(figures)
    assert (ROOT / "docs" / "bench.svg").read_text(encoding="utf-8") == chart.svg(figures)
    assert list(figures["contenders"]) == [each.name for each in CONTENDERS]


def made_by(code: str) -> dict[str, set[str]]:
    """Return the imported names that a program calls, with their keywords."""
    tree = ast.parse(code)
    imported = {
        (each.asname or each.name).partition(".")[0]
        for line in ast.walk(tree)
        if isinstance(line, ast.Import | ast.ImportFrom)
        and (getattr(line, "module", "") or "").partition(".")[0] not in OURS
        for each in line.names
    }
    called: dict[str, set[str]] = {}
    for each in ast.walk(tree):
        match each:
            case ast.Call(func=ast.Name() | ast.Attribute() as made, keywords=given):
                if (name := ast.unparse(made)).partition(".")[0] in imported:
                    called.setdefault(name, set()).update(keyword.arg for keyword in given if keyword.arg)
            case _:
                pass
    return called


OURS = {"__future__", "collections", "concurrent", "typing", "typing_extensions", "peers", "pydantic"}
OTHERWISE = {"dspy.configure": "the measured one sets it by `dspy.context`, for its runs at once"}


def test_framework_program_printed_in_docs_equals_measured_program() -> None:
    for name in [name for name in shown.TABS if name != "acorn_native"]:
        with case(name):
            measured = (ROOT / "bench/peers/contenders" / f"{name}.py").read_text(encoding="utf-8")
            there, on_page = made_by(measured), made_by(shown.programs()[name])
            assert on_page
            for called, keywords in on_page.items():
                if called in OTHERWISE:
                    continue
                assert called in there, f"{name}: the page calls `{called}`, the measured program does not"
                assert keywords <= there[called], f"{name}: `{called}` is given other things on the page"


def test_each_framework_compared_in_docs_has_printed_program() -> None:
    assert set(shown.TABS) == {name for name in COMPARED if not name.startswith("raw_")}
    assert set(shown.programs()) == set(shown.TABS)


def test_benchmark_failure_is_reported_without_file_paths() -> None:
    assert without_paths("No module at /home/me/x.py,\n see http://127.0.0.1:80/v1") == "No module at …, see …"


def test_unknown_framework_name_error_lists_known_names() -> None:
    command = [sys.executable, "-m", "peers.run", "--only", "nobody"]
    done = subprocess.run(command, cwd=ROOT / "bench", capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert "`nobody`" in done.stderr
    assert "acorn_native" in done.stderr


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    with serving() as address:
        yield address


def post(url: str, body: dict[str, Any]) -> str:
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), method="POST")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=PATIENCE) as response:
        return str(response.read().decode())


def asked(tool: str, *results: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": question(3)}, *({"role": "tool", "content": each} for each in results)]
    return {"messages": messages, "tools": [{"function": {"name": name}} for name in (tool, "done")]}


def test_benchmark_server_answers_tool_results_and_counts_requests(root: str) -> None:
    take(root)
    first = json.loads(post(f"{root}/done/loop2", asked("look")))["choices"][0]["message"]["tool_calls"]
    second = json.loads(post(f"{root}/done/loop2", asked("look", MARK)))["choices"][0]["message"]["tool_calls"]
    last = json.loads(post(f"{root}/done/loop2", asked("look", MARK, MARK)))["choices"][0]["message"]["tool_calls"]
    assert [json.loads(each[0]["function"]["arguments"])["place"] for each in (first, second)] == ["tree 0", "tree 1"]
    assert last[0]["function"]["name"] == "done"
    assert json.loads(last[0]["function"]["arguments"]) == answer(3)
    assert take(root) == {"requests": 3, "refused": []}
    assert take(root)["requests"] == 0


def test_benchmark_server_calls_parallel_tools_in_one_response(root: str) -> None:
    calls = json.loads(post(f"{root}/done/parallel20", asked("wait")))["choices"][0]["message"]["tool_calls"]
    assert len({call["id"] for call in calls}) == 20


def test_benchmark_server_streams_report_in_chunks(root: str) -> None:
    events = re.findall(r"data: (\{.*\})\n", post(f"{root}/json/stream2", {"stream": True, "response_format": {}}))
    deltas = [json.loads(event)["choices"][0]["delta"].get("content") for event in events]
    assert [delta for delta in deltas if delta] == pieces(report(2))


def test_benchmark_server_rejects_request_that_task_does_not_allow(root: str) -> None:
    for path, body in [
        ("done/loop2", asked("other")),
        ("done/loop2", asked("look", MARK, MARK, MARK)),
        ("done/parallel20", asked("wait", MARK)),
        ("other/single", asked("look")),
        ("json/single", asked("look")),
        ("done/single", {"tools": "done"}),
    ]:
        with case(path):
            take(root)
            with pytest.raises(urllib.error.HTTPError) as refused:
                post(f"{root}/{path}", body)
            refused.value.close()
            assert refused.value.code == 400
            assert take(root)["refused"]


WITHOUT_PACKAGES = [each for each in CONTENDERS if not each.requires]


@pytest.mark.parametrize(
    "contender",
    [
        pytest.param(each, id=each.name, marks=[] if each.name == "acorn_native" else pytest.mark.release)
        for each in WITHOUT_PACKAGES
    ],
)
def test_benchmark_programs_without_extra_packages_complete_each_task(root: str, contender: Contender) -> None:
    process = Process(contender, sys.executable, root)
    try:
        process.read(PATIENCE)
        page = ["page3"] if contender.name in shown.TABS else []
        for work in ("first", "many5", "single", "loop3", "parallel4", "stream2", *page):
            take(root)
            told = process.do(work, PATIENCE)
            assert "error" not in told, f"{work}: {told}"
            assert take(root) == {"requests": told["runs"] * requests_of(work), "refused": []}
    finally:
        process.end()
