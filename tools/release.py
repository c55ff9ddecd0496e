"""Build a release and test it in new environments: `make release`.

The program does not publish the release. If every check passes, `dist/` contains the wheel, the source archive and the
bill of materials. The program also prints the changelog section of the release.

    make release                   requires a clean tree, and a changelog section for the version
    make release ARGS=--rehearse   accepts uncommitted changes, and a changelog section `Unreleased`
    make release ARGS=--dry-run    checks the tree and the changelog without a build

The program creates new environments for the build and for each test of the wheel. It does not use `.venv`.
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
TOOLS = Path(__file__).parent
UNRELEASED = "Unreleased"
BUILD_TOOLS = ("build>=1.2,<2", "cyclonedx-python-lib[json-validation]>=10,<12", "twine>=6.1", "uv>=0.9,<1")


class ReleaseError(Exception):
    """A failed check, whose message explains why the release must not be published."""


def version_of(root: Path) -> str:
    """Return the version of the package from `acorn.__version__`, without an import of acorn."""
    path = root / "src/acorn/__init__.py"
    for line in ast.parse(path.read_text(encoding="utf-8")).body:
        match line:
            case ast.Assign(targets=[ast.Name(id="__version__")], value=ast.Constant(value=str(version))):
                return version
            case _:
                pass
    raise ReleaseError(f'`{path.relative_to(root)}` has no line `__version__ = "..."`. Add the line.')


def changelog_section(text: str, version: str) -> str:
    """Return the changelog section of a version, without its heading."""
    parts = re.split(r"^## +\[?([^\s\]]+)\]?.*$", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if version not in sections:
        names = ", ".join(f"`{name}`" for name in sections) or "none"
        raise ReleaseError(f"CHANGELOG.md has no section `## {version}` (its sections are: {names}). Add the heading.")
    if not sections[version].strip():
        raise ReleaseError(f"CHANGELOG.md has an empty section `## {version}`. Describe the changes of the version.")
    return sections[version].strip()


def check_tree(root: Path) -> None:
    """Check that the tree has no uncommitted changes."""
    changed = run_command(["git", "status", "--porcelain"], cwd=root).splitlines()
    if changed:
        raise ReleaseError("The tree has uncommitted changes. Commit or remove them:\n" + "\n".join(changed))


def run_command(command: Sequence[str | Path], *, cwd: Path, **variables: str) -> str:
    """Run a command and return its output, or raise `ReleaseError` with the output if the command fails."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**clean_environment(), **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        short = " ".join(Path(word).name if os.path.isabs(word) else word for word in map(str, command))
        raise ReleaseError(f"The command `{short}` failed:\n{(done.stdout + done.stderr).strip()}")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Return the environment variables without API keys and without settings of Python and acorn."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "ACORN_", "VIRTUAL_ENV")) and not name.endswith("_API_KEY")
    }


def create_build_environment(folder: Path) -> Path:
    """Create a virtual environment with the build tools, and return the path of its interpreter."""
    run_command([sys.executable, "-m", "venv", folder], cwd=folder.parent)
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run_command([folder / "bin/python", *pip, *BUILD_TOOLS], cwd=folder.parent)
    return folder / "bin/python"


def create_environment(folder: Path, requirement: str, *, builder: Path) -> Path:
    """Create a virtual environment with one requirement but without pip, and return the path of its interpreter."""
    uv = builder.parent / "uv"
    run_command([uv, "venv", "--quiet", "--python", sys.executable, folder], cwd=folder.parent)
    run_command([uv, "pip", "install", "--quiet", "--python", folder / "bin/python", requirement], cwd=folder.parent)
    return folder / "bin/python"


def build(root: Path, work: Path, builder: Path) -> tuple[Path, Path]:
    """Build the wheel and the source archive, check both, and return their paths."""
    # The date of the commit is the date of all files, so that two builds of a commit are identical.
    seconds = run_command(["git", "log", "-1", "--format=%ct"], cwd=root).strip()
    made = work / "made"
    run_command(
        [builder, "-m", "build", "--sdist", "--wheel", "--outdir", made, root], cwd=work, SOURCE_DATE_EPOCH=seconds
    )
    wheel, archive = next(made.glob("*.whl")), next(made.glob("*.tar.gz"))
    with tarfile.open(archive) as opened:
        opened.extractall(work / "unpacked", filter="data")
    unpacked = next((work / "unpacked").iterdir())
    again = work / "again"
    run_command([builder, "-m", "build", "--wheel", "--outdir", again, unpacked], cwd=work, SOURCE_DATE_EPOCH=seconds)
    check_files(root, wheel, unpacked)
    check_readme(metadata_of(wheel))
    run_command([builder, "-m", "twine", "check", "--strict", wheel, archive], cwd=work)
    check_same(wheel, next(again.glob("*.whl")))
    return wheel, archive


def check_files(root: Path, wheel: Path, unpacked: Path) -> None:
    """Check that the source archive contains all tracked files, and the wheel all tracked files of the package."""
    tracked = set(run_command(["git", "ls-files"], cwd=root).splitlines())
    with zipfile.ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if ".dist-info/" not in name}
    check_sets("The wheel", packed, {name.removeprefix("src/") for name in tracked if name.startswith("src/acorn/")})
    sent = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    check_sets("The source archive", sent - {"PKG-INFO"}, tracked)


def metadata_of(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return opened.read(name).decode()


def check_readme(shown: str) -> None:
    """Check that the README for the package index has no relative links, because they work only in the repository."""
    pointed = re.findall(r"\]\(([^)]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", shown)
    local = sorted({link for pair in pointed for link in pair if link and not re.match(r"[a-z]+:", link)})
    if local:
        raise ReleaseError(
            f"The README has links or images that do not exist in the package index: {', '.join(local)}. "
            f"Use complete URLs."
        )


def check_sets(name: str, actual: set[str], expected: set[str]) -> None:
    if actual != expected:
        missing = ", ".join(sorted(expected - actual)) or "none"
        untracked = ", ".join(sorted(actual - expected)) or "none"
        raise ReleaseError(f"{name} has the wrong files. Missing files: {missing}. Untracked files: {untracked}.")


def check_same(wheel: Path, other: Path) -> None:
    """Check that the wheel from the repository and the wheel from the source archive contain the same files."""
    hashes, other_hashes = file_hashes(wheel), file_hashes(other)
    names = hashes.keys() | other_hashes.keys()
    differing = sorted(name for name in names if hashes.get(name) != other_hashes.get(name))
    if wheel.name != other.name or differing:
        raise ReleaseError(
            f"A build from the source archive returns a different wheel, `{other.name}`. "
            f"These files differ: {differing}"
        )


def file_hashes(wheel: Path) -> dict[str, str]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: hashlib.sha256(opened.read(name)).hexdigest() for name in opened.namelist()}


def try_wheel(root: Path, wheel: Path, work: Path, builder: Path) -> Path:
    """Test the wheel without extras and with each extra in a new environment, and return the bill of materials."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("testing the wheel without extras", flush=True)
    python = create_environment(work / "plain", f"{project['name']} @ {wheel.as_uri()}", builder=builder)
    tried = work / "tried"
    tried.mkdir()
    version = version_of(root)
    missing = set(json.loads(run_command([python, TOOLS / "try_installed.py", version], cwd=tried)))
    print(run_command([work / "plain/bin/acorn", "--version"], cwd=tried).strip(), flush=True)
    run_command([work / "plain/bin/acorn", "--help"], cwd=tried)
    bill = work / f"{wheel.name.split('-py3')[0]}.cdx.json"
    bill.write_text(run_command([python, TOOLS / "sbom.py", project["name"]], cwd=tried), encoding="utf-8")
    run_command([builder, TOOLS / "sbom.py", "--check", bill], cwd=tried)
    for extra in project["optional-dependencies"]:
        print(f"testing the wheel with the extra `{extra}`", flush=True)
        folder = work / f"with-{extra}"
        python = create_environment(folder, f"{project['name']}[{extra}] @ {wheel.as_uri()}", builder=builder)
        missing &= set(json.loads(run_command([python, TOOLS / "try_installed.py", version, extra], cwd=tried)))
        shutil.rmtree(folder)
    if missing:
        raise ReleaseError(
            f"These modules cannot be imported with any extra: {', '.join(sorted(missing))}. "
            f"Add the packages that they import to an extra."
        )
    return bill


def release(root: Path, *, is_rehearsal: bool, is_dry: bool) -> None:
    version = version_of(root)
    if not is_rehearsal:
        check_tree(root)
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    is_unnamed = is_rehearsal and re.search(rf"^## +\[?{UNRELEASED}\b", changes, flags=re.MULTILINE)
    notes = changelog_section(changes, UNRELEASED if is_unnamed else version)
    if is_dry:
        print(f"would release acorn {version}\n\n{notes}")
        return
    with tempfile.TemporaryDirectory(prefix="acorn-release-") as temporary:
        work = Path(temporary)
        print(f"building acorn {version}", flush=True)
        builder = create_build_environment(work / "builder")
        wheel, archive = build(root, work, builder)
        bill = try_wheel(root, wheel, work, builder)
        shutil.rmtree(root / "dist", ignore_errors=True)
        (root / "dist").mkdir()
        for made in (wheel, archive, bill):
            shutil.move(made, root / "dist")
            print(f"dist/{made.name}")
    print(f"\nacorn {version}\n\n{notes}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a release and test it in new environments.")
    parser.add_argument(
        "--rehearse", action="store_true", help="accept uncommitted changes and the changelog section `Unreleased`"
    )
    parser.add_argument("--dry-run", action="store_true", help="check the tree and the changelog, but build nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder of the repository")
    options = parser.parse_args()
    try:
        release(options.root.resolve(), is_rehearsal=options.rehearse, is_dry=options.dry_run)
    except ReleaseError as error:
        sys.exit(f"Release failed: {error}")


if __name__ == "__main__":
    main()
