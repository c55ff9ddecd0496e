"""Build a release and try it like a new user: `make release`.

Nothing is published. If every check passes, `dist/` has the wheel, the source archive and the bill of materials, and
the section of the changelog is printed for the person who publishes them.

    make release                   a clean tree, and a version with a changelog section
    make release ARGS=--rehearse   the same from the tree as it is; the section may be `Unreleased`
    make release ARGS=--dry-run    only the checks before the build

The build environment and each environment that tries the wheel are new, separate from `.venv`.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
UNRELEASED = "Unreleased"
BUILT_WITH = ("build>=1.2,<2", "cyclonedx-python-lib[json-validation]>=10,<12", "twine>=6.1", "uv>=0.9,<1")


class ReleaseError(Exception):
    """The release must not be published; the message says why."""


def version_of(root: Path) -> str:
    """Return the version, whose only place is `acorn.__version__`."""
    path = root / "src/acorn/__init__.py"
    for line in ast.parse(path.read_text(encoding="utf-8")).body:
        match line:
            case ast.Assign(targets=[ast.Name(id="__version__")], value=ast.Constant(value=str(version))):
                return version
            case _:
                pass
    raise ReleaseError(f'`{path.relative_to(root)}` has no line `__version__ = "..."`')


def changelog_part(text: str, version: str) -> str:
    """Return the section of a version, without its heading."""
    parts = re.split(r"^## +\[?([^\s\]]+)\]?.*$", text, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    if version not in found:
        there = ", ".join(f"`{name}`" for name in found) or "none"
        raise ReleaseError(f"CHANGELOG.md has no part `## {version}` (it has: {there}); give the changes their heading")
    if not found[version].strip():
        raise ReleaseError(f"CHANGELOG.md says nothing under `## {version}`; write what changed")
    return found[version].strip()


def judge_tree(root: Path) -> None:
    """Check that the tree equals its commit."""
    changed = said(["git", "status", "--porcelain"], cwd=root).splitlines()
    if changed:
        raise ReleaseError("the tree has changes that are not committed; commit or remove them:\n" + "\n".join(changed))


def said(command: Sequence[str | Path], *, cwd: Path, **variables: str) -> str:
    """Return the output of a command; if it fails, its output is the error."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**environment(), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        shown = " ".join(Path(word).name if os.path.isabs(word) else word for word in map(str, command))
        raise ReleaseError(f"`{shown}` failed:\n{(done.stdout + done.stderr).strip()}")
    return done.stdout


def environment() -> dict[str, str]:
    """Return an environment without the tree on its path and without provider keys."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "ACORN_", "VIRTUAL_ENV")) and not name.endswith("_API_KEY")
    }


def new_builder(place: Path) -> Path:
    """Return the interpreter of an environment with the build tools."""
    said([sys.executable, "-m", "venv", place], cwd=place.parent)
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    said([place / "bin/python", *pip, *BUILT_WITH], cwd=place.parent)
    return place / "bin/python"


def new_environment(place: Path, requirement: str, *, builder: Path) -> Path:
    """Return the interpreter of an environment that has only the requirements, not even pip."""
    uv = builder.parent / "uv"
    said([uv, "venv", "--quiet", "--python", sys.executable, place], cwd=place.parent)
    said([uv, "pip", "install", "--quiet", "--python", place / "bin/python", requirement], cwd=place.parent)
    return place / "bin/python"


def build(root: Path, work: Path, builder: Path) -> tuple[Path, Path]:
    """Build the wheel and the source archive from the tracked files."""
    seconds = said(["git", "log", "-1", "--format=%ct"], cwd=root).strip()  # The same commit makes the same files.
    made = work / "made"
    said([builder, "-m", "build", "--sdist", "--wheel", "--outdir", made, root], cwd=work, SOURCE_DATE_EPOCH=seconds)
    wheel, archive = next(made.glob("*.whl")), next(made.glob("*.tar.gz"))
    with tarfile.open(archive) as opened:
        opened.extractall(work / "unpacked", filter="data")
    unpacked = next((work / "unpacked").iterdir())
    again = work / "again"
    said([builder, "-m", "build", "--wheel", "--outdir", again, unpacked], cwd=work, SOURCE_DATE_EPOCH=seconds)
    judge_files(root, wheel, unpacked)
    judge_readme(metadata_of(wheel))
    said([builder, "-m", "twine", "check", "--strict", wheel, archive], cwd=work)
    judge_same(wheel, next(again.glob("*.whl")))
    return wheel, archive


def judge_files(root: Path, wheel: Path, unpacked: Path) -> None:
    """Check that the source archive has all tracked files, and the wheel those of the package."""
    tracked = set(said(["git", "ls-files"], cwd=root).splitlines())
    with zipfile.ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if ".dist-info/" not in name}
    judge_sets("the wheel", packed, {name.removeprefix("src/") for name in tracked if name.startswith("src/acorn/")})
    sent = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    judge_sets("the source archive", sent - {"PKG-INFO"}, tracked)


def metadata_of(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return opened.read(name).decode()


def judge_readme(shown: str) -> None:
    """Check that the README of the package index has no links into the repository."""
    pointed = re.findall(r"\]\(([^)]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", shown)
    local = sorted({link for pair in pointed for link in pair if link and not re.match(r"[a-z]+:", link)})
    if local:
        raise ReleaseError(f"the package index would show links and pictures that are not there: {', '.join(local)}")


def judge_sets(name: str, has: set[str], wanted: set[str]) -> None:
    if has != wanted:
        lacks, strange = ", ".join(sorted(wanted - has)) or "nothing", ", ".join(sorted(has - wanted)) or "nothing"
        raise ReleaseError(f"{name} lacks: {lacks}; and has what is not tracked: {strange}")


def judge_same(wheel: Path, other: Path) -> None:
    """Check that a wheel made from the source archive has identical files."""
    one, two = contents(wheel), contents(other)
    differing = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    if wheel.name != other.name or differing:
        raise ReleaseError(f"the source archive makes another wheel, `{other.name}`; it differs in: {differing}")


def contents(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: hashlib.sha256(opened.read(name)).hexdigest() for name in opened.namelist()}


def try_wheel(root: Path, wheel: Path, work: Path, builder: Path) -> Path:
    """Return the bill of materials after trying the wheel alone and with each extra, in empty environments."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("trying the wheel alone", flush=True)
    python = new_environment(work / "plain", f"{project['name']} @ {wheel.as_uri()}", builder=builder)
    tried = work / "tried"
    tried.mkdir()
    version = version_of(root)
    missing = set(json.loads(said([python, HERE / "try_installed.py", version], cwd=tried)))
    print(said([work / "plain/bin/acorn", "--version"], cwd=tried).strip(), flush=True)
    said([work / "plain/bin/acorn", "--help"], cwd=tried)
    bill = work / f"{wheel.name.split('-py3')[0]}.cdx.json"
    bill.write_text(said([python, HERE / "sbom.py", project["name"]], cwd=tried), encoding="utf-8")
    said([builder, HERE / "sbom.py", "--judge", bill], cwd=tried)
    for extra in project["optional-dependencies"]:
        print(f"trying the wheel with the extra `{extra}`", flush=True)
        place = work / f"with-{extra}"
        python = new_environment(place, f"{project['name']}[{extra}] @ {wheel.as_uri()}", builder=builder)
        missing &= set(json.loads(said([python, HERE / "try_installed.py", version, extra], cwd=tried)))
        shutil.rmtree(place)
    if missing:
        raise ReleaseError(f"no extra brings what these import: {', '.join(sorted(missing))}")
    return bill


def release(root: Path, *, is_rehearsal: bool, is_dry: bool) -> None:
    version = version_of(root)
    if not is_rehearsal:
        judge_tree(root)
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    is_unnamed = is_rehearsal and re.search(rf"^## +\[?{UNRELEASED}\b", changes, flags=re.MULTILINE)
    notes = changelog_part(changes, UNRELEASED if is_unnamed else version)
    if is_dry:
        print(f"would release acorn {version}\n\n{notes}")
        return
    with tempfile.TemporaryDirectory(prefix="acorn-release-") as temporary:
        work = Path(temporary)
        print(f"building acorn {version}", flush=True)
        builder = new_builder(work / "builder")
        wheel, archive = build(root, work, builder)
        bill = try_wheel(root, wheel, work, builder)
        shutil.rmtree(root / "dist", ignore_errors=True)
        (root / "dist").mkdir()
        for made in (wheel, archive, bill):
            shutil.move(made, root / "dist")
            print(f"dist/{made.name}")
    print(f"\nacorn {version}\n\n{notes}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a release and try it as a stranger would.")
    parser.add_argument("--rehearse", action="store_true", help="from the tree as it is, with the part `Unreleased`")
    parser.add_argument("--dry-run", action="store_true", help="judge the tree and the changelog, build nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    given = parser.parse_args()
    try:
        release(given.root.resolve(), is_rehearsal=given.rehearse, is_dry=given.dry_run)
    except ReleaseError as error:
        sys.exit(f"no release: {error}")


if __name__ == "__main__":
    main()
