"""Tests of the bounds of dependencies, and of `make audit`, with a program in the place of pip-audit."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from tests.cases import case
from tools import audit

ROOT = Path(__file__).parents[2]
TOTAL = len(audit.locked_packages(audit.LOCK.read_text(encoding="utf-8")))

FakeAudit = Callable[[str], str]


@pytest.fixture
def fake_audit(tmp_path: Path) -> FakeAudit:
    """Return a function that writes a program, which reads the locked packages as `packages` and executes some code."""

    def write(code: str) -> str:
        path = tmp_path / "pip-audit"
        path.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            "lines = open(sys.argv[sys.argv.index('--requirement') + 1]).read().split()\n"
            "packages = [dict(zip(('name', 'version'), line.split('=='))) for line in lines]\n"
            f"{code}"
        )
        path.chmod(0o755)
        return str(path)

    return write


def test_all_requirements_have_upper_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    asked += [each for extra in project["project"]["optional-dependencies"].values() for each in extra]
    lines = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    asked += [line for line in lines if line and not line.startswith("#")]
    for each in map(Requirement, asked):
        with case(str(each)):
            operators = {specifier.operator for specifier in each.specifier}
            assert each.name == "acorn-agents" or operators & {"<", "=="}


def test_audit_reads_every_package_of_lock_file_once() -> None:
    packages = audit.locked_packages(audit.LOCK.read_text(encoding="utf-8"))
    assert len(packages) == len(set(packages))
    assert {package.count("==") for package in packages} == {1}
    assert any(package.startswith("pydantic==") for package in packages)


def test_audit_without_findings_succeeds(fake_audit: FakeAudit, capsys: pytest.CaptureFixture[str]) -> None:
    program = fake_audit("print(json.dumps({'dependencies': [{**each, 'vulns': []} for each in packages]}))")
    assert audit.main(program, []) == 0
    assert capsys.readouterr().out == f"No known vulnerabilities in {TOTAL} packages.\n"


def test_audit_with_findings_names_packages_and_fixed_versions(
    fake_audit: FakeAudit, capsys: pytest.CaptureFixture[str]
) -> None:
    program = fake_audit(
        "found = {'rich': [{'id': 'CVE-1', 'fix_versions': ['99.1', '99.2']}]}\n"
        "found['lxml'] = [{'id': 'CVE-2', 'fix_versions': []}]\n"
        "rows = [{**each, 'vulns': found.get(each['name'], [])} for each in packages]\n"
        "print(json.dumps({'dependencies': rows}))\nsys.exit(1)\n"
    )
    assert audit.main(program, []) == 1
    errors = capsys.readouterr().err
    assert "CVE-1, fixed in: 99.1, 99.2\n" in errors
    assert "CVE-2, fixed in: none\n" in errors
    assert "run `make lock`" in errors


@pytest.mark.parametrize("is_left_out", [False, True])
def test_audit_without_data_about_one_package_fails(
    is_left_out: bool, fake_audit: FakeAudit, capsys: pytest.CaptureFixture[str]
) -> None:
    # pip-audit itself reports success.
    last = "[]" if is_left_out else "[{'name': 'rich', 'skip_reason': 'not found'}]"
    program = fake_audit(
        "rows = [{**each, 'vulns': []} for each in packages if each['name'] != 'rich']\n"
        f"rows += {last} if len(rows) < len(packages) else []\n"
        "print(json.dumps({'dependencies': rows}))\n"
    )
    assert audit.main(program, []) == 2
    errors = capsys.readouterr().err
    assert f"no data about 1 of {TOTAL} packages ({'pip-audit left them out' if is_left_out else 'rich'})" in errors
    assert "https://pypi.org" in errors


def test_audit_without_network_fails_with_reason(fake_audit: FakeAudit, capsys: pytest.CaptureFixture[str]) -> None:
    program = fake_audit("sys.exit('Traceback\\nConnectionError: no route')")
    assert audit.main(program, []) == 2
    errors = capsys.readouterr().err
    assert "Nothing was audited, because pip-audit failed: ConnectionError: no route\n" in errors
    assert "The audit needs a connection to https://pypi.org" in errors


def test_report_of_vulnerable_and_missing_packages_is_a_failure() -> None:
    rows: list[dict[str, Any]] = [
        {"name": "a", "version": "1", "vulns": [{"id": "CVE-3", "fix_versions": ["2"]}]},
        {"name": "b", "skip_reason": "not found"},
    ]
    text, code = audit.report(rows, 2)
    assert code == 1
    assert "a 1: CVE-3, fixed in: 2" in text
    assert "no data about 1 of 2 packages (b)" in text
