"""Tests of the checks of `make release`; `make release-check` also builds and installs the package."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools import release, sbom

import acorn

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
CHANGELOG = "# Changelog\n\nWords.\n\n## Unreleased\n\n### Added\n- A thing.\n\n## 0.1.0 (2026-01-02)\n\n- The first.\n"


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=Anna", "-c", "user.email=anna@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Create a clean tree of version 0.1.0 with everything that is read before the build."""
    (tmp_path / "src/acorn").mkdir(parents=True)
    (tmp_path / "src/acorn/__init__.py").write_text('__version__ = "0.1.0"\n', encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "All of it")
    return tmp_path


def dry_run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools/release.py"), "--dry-run", "--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


# The version


def test_package_version_is_defined_only_in_init_file() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    assert "version" not in PROJECT["project"]
    assert ROOT / PROJECT["tool"]["hatch"]["version"]["path"] == ROOT / "src/acorn/__init__.py"
    assert release.version_of(ROOT) == acorn.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", acorn.__version__)


def test_release_of_package_without_version_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "src/acorn").mkdir(parents=True)
    (tmp_path / "src/acorn/__init__.py").write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(release.ReleaseError, match="has no line `__version__"):
        release.version_of(tmp_path)


# The tree and the changelog


def test_release_of_clean_repository_uses_changelog_section_of_version(repository: Path) -> None:
    done = dry_run(repository)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "would release acorn 0.1.0\n\n- The first.\n"
    assert not (repository / "dist").exists()


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.py"])
def test_release_with_uncommitted_changes_raises_error_with_file_names(repository: Path, name: str) -> None:
    with (repository / name).open("a", encoding="utf-8") as opened:
        opened.write("\n")
    done = dry_run(repository)
    assert done.returncode == 1
    assert done.stderr.startswith("Release failed: The tree has uncommitted changes.")
    assert name in done.stderr


def test_release_rehearsal_accepts_uncommitted_changes_and_unreleased_section(repository: Path) -> None:
    (repository / "src/acorn/__init__.py").write_text('__version__ = "0.2.0"\n', encoding="utf-8")
    done = dry_run(repository, "--rehearse")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "would release acorn 0.2.0\n\n### Added\n- A thing.\n"


def test_release_rehearsal_prefers_changelog_section_of_version(repository: Path) -> None:
    changes = (repository / "CHANGELOG.md").read_text(encoding="utf-8").replace("## Unreleased", "## 0.2.0")
    (repository / "CHANGELOG.md").write_text(changes, encoding="utf-8")
    (repository / "src/acorn/__init__.py").write_text('__version__ = "0.2.0"\n', encoding="utf-8")
    done = dry_run(repository, "--rehearse")
    assert done.stdout == "would release acorn 0.2.0\n\n### Added\n- A thing.\n", done.stderr


def test_release_of_version_without_changelog_section_is_rejected(repository: Path) -> None:
    (repository / "src/acorn/__init__.py").write_text('__version__ = "0.2.0"\n', encoding="utf-8")
    git(repository, "commit", "--quiet", "--all", "--message", "Next")
    done = dry_run(repository)
    assert done.returncode == 1
    assert done.stderr == (
        "Release failed: CHANGELOG.md has no section `## 0.2.0` (its sections are: `Unreleased`, `0.1.0`). "
        "Add the heading.\n"
    )


@pytest.mark.parametrize("heading", ["## 1.2.0", "## [1.2.0]", "## 1.2.0 - 2026-01-02", "##  1.2.0 (a day)"])
def test_changelog_headings_in_common_forms_are_parsed(heading: str) -> None:
    assert release.changelog_section(f"{heading}\n\n- New.\n\n### Fixed\n- Old.\n\n## 1.1.0\n- x\n", "1.2.0") == (
        "- New.\n\n### Fixed\n- Old."
    )


def test_changelog_with_empty_or_missing_section_is_rejected() -> None:
    with pytest.raises(release.ReleaseError, match=r"has an empty section `## 1\.0`"):
        release.changelog_section("## 1.0\n\n## 0.9\n- x\n", "1.0")
    with pytest.raises(release.ReleaseError, match="its sections are: none"):
        release.changelog_section("# Changelog\n", "1.0")


def test_changelog_contains_section_for_next_release() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert any(f"## {name}" in text for name in (release.UNRELEASED, acorn.__version__))


# What is built


def test_wheel_with_missing_and_extra_files_is_rejected() -> None:
    release.check_sets("The wheel", {"acorn/a.py"}, {"acorn/a.py"})
    words = r"The wheel has the wrong files\. Missing files: acorn/py\.typed\. Untracked files: acorn/x\.py\."
    with pytest.raises(release.ReleaseError, match=words):
        release.check_sets("The wheel", {"acorn/x.py"}, {"acorn/py.typed"})


def readme_of_the_index() -> str:
    """Return the README as the build makes it, by the same substitutions."""
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    for each in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        shown = re.sub(each["pattern"], each["replacement"], shown)
    return shown


def test_readme_for_package_index_contains_no_links_into_repository() -> None:
    shown = readme_of_the_index()
    release.check_readme(shown)
    assert "<!--" not in shown
    assert shown.startswith("# acorn\n\nLLM agents as typed Python classes")
    assert "Tutorial, six short pages · why acorn ·\nguides, one subject each · examples and what each shows ·" in shown
    assert "class Researcher(module):" in shown
    assert "\n\n\n\n" not in shown.replace("\n\n\n@tool", "").replace("\n\n\nclass", "").replace("\n\n\nif", "")


@pytest.mark.parametrize("line", ["[a](docs/a.md)", "![a](a.png)", '<img alt="a" src="docs/a.png">', "[a](#here)"])
def test_readme_with_link_into_repository_is_rejected_for_package_index(line: str) -> None:
    release.check_readme("[a](https://example.org/a) is elsewhere, `docs/a.md` is text")
    with pytest.raises(release.ReleaseError, match="links or images that do not exist in the package index: "):
        release.check_readme(line)


def test_wheels_with_different_content_are_rejected(tmp_path: Path) -> None:
    wheels = [tmp_path / place / "acorn-1-py3-none-any.whl" for place in ("one", "two")]
    for wheel, text in zip(wheels, ("x = 1", "x = 2"), strict=True):
        wheel.parent.mkdir()
        with zipfile.ZipFile(wheel, "w") as opened:
            opened.writestr("acorn/__init__.py", text)
    release.check_same(wheels[0], wheels[0])
    with pytest.raises(release.ReleaseError, match=r"These files differ: \['acorn/__init__\.py'"):
        release.check_same(*wheels)


def test_failed_release_command_error_contains_output_without_path() -> None:
    with pytest.raises(release.ReleaseError) as caught:
        release.run_command([sys.executable, "-c", "raise SystemExit('the words')"], cwd=ROOT)
    assert "the words" in str(caught.value)
    assert sys.executable not in str(caught.value)


@pytest.mark.release
def test_release_rehearsal_creates_wheel_source_archive_and_bill_of_materials(tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "acorn")], check=True, timeout=120)
    command = [sys.executable, "tools/release.py", "--rehearse"]
    done = subprocess.run(command, cwd=tmp_path / "acorn", capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    names = sorted(path.name for path in (tmp_path / "acorn/dist").iterdir())
    stem = f"acorn_agents-{acorn.__version__}"
    assert names == [f"{stem}-py3-none-any.whl", f"{stem}.cdx.json", f"{stem}.tar.gz"]


# The bill of materials


def test_bill_of_materials_lists_dependencies_with_versions() -> None:
    bill: dict[str, Any] = sbom.bill("acorn-agents")
    listed = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    for each in map(Requirement, PROJECT["project"]["dependencies"]):
        assert listed[canonicalize_name(each.name)] == installed_version(each.name)
    assert not set(listed) & {"pytest", "ruff", "mypy", "hypothesis", "playwright", "acorn-agents"}
    known = {each["bom-ref"] for each in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {edge["ref"] for edge in bill["dependencies"]} == known
    for edge in bill["dependencies"]:
        assert set(edge["dependsOn"]) <= known - {edge["ref"]}
    assert len(known) == len(bill["components"]) + 1


def test_bill_of_materials_is_reproducible_and_contains_no_paths() -> None:
    bill: dict[str, Any] = sbom.bill("acorn-agents")
    assert sbom.bill("acorn-agents") == bill
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    assert all(each["purl"].startswith("pkg:pypi/") for each in bill["components"])
    assert str(ROOT) not in str(bill)
    assert "file:" not in str(bill)


# The lock


def locked() -> dict[str, Requirement]:
    lines = [line.removesuffix("\\").strip() for line in LOCK.splitlines() if not line.startswith(" ")]
    return {canonicalize_name(each.name): each for each in map(Requirement, lines)}


def test_lock_file_matches_requirements() -> None:
    asked = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    asked = [line for line in asked if line and not line.startswith("#")] + PROJECT["project"]["dependencies"]
    asked += [each for extra in PROJECT["project"]["optional-dependencies"].values() for each in extra]
    there = locked()
    for each in map(Requirement, asked):
        name = canonicalize_name(each.name)
        if name == "acorn-agents":
            continue
        assert name in there, f"`{each.name}` is not in requirements-dev.lock; run `make lock`"
        pinned = str(there[name].specifier).removeprefix("==")
        assert each.specifier.contains(pinned, prereleases=True), f"`{each}` is locked to {pinned}; run `make lock`"


def test_lock_file_lines_have_version_and_hashes() -> None:
    requirements = re.split(r"\n(?=\S)", LOCK.strip())
    for each in requirements:
        assert re.fullmatch(r"[\w.-]+==[\w.]+( ; [^\\]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+", each), each[:200]


@pytest.mark.release
def test_environment_installed_from_lock_file_passes_pip_check(tmp_path: Path) -> None:
    python, pip = tmp_path / "env/bin/python", ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True, timeout=600)
    file = str(ROOT / "requirements-dev.lock")
    lock = ["install", "--require-hashes", "--requirement", file, "--constraint", file]  # As in the Makefile.
    subprocess.run([python, *pip, *lock], check=True, timeout=3600)
    subprocess.run([python, *pip, "install", "--no-deps", str(ROOT)], check=True, timeout=600)
    subprocess.run([python, "-m", "pip", "check"], check=True, timeout=600)
    subprocess.run([tmp_path / "env/bin/acorn", "--version"], check=True, timeout=600)


def test_lock_file_contains_no_index_or_machine_path() -> None:
    assert not re.search(r"://|--(extra-)?index|find-links|\s/|file:", LOCK)
