"""Code reviewer: an agent that reads the changes in a git repository and starts several reviewers concurrently.

    python examples/reviewer.py
    acorn run examples/reviewer.py --repository . --base HEAD~1

The model reads the changes with its tools, then starts all reviewers in one response. The reviewers are branches, so
they inherit the conversation with the changes. They run concurrently and return typed remarks, from which the model
writes its verdict.

The program calls `git` without a shell and with options that prevent `git` from starting programs of the repository's
configuration. The model can read only files that have changed.

The first command needs no API key and no network, because it uses a scripted model and a small repository.
"""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, DirectoryPath, Field

from acorn import Run, module, tool
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, call, finish

SAFELY = ("--literal-pathspecs", "-c", "core.fsmonitor=false")
# These variables forbid network access, even if the configuration of the repository allows it.
NO_REMOTES = {"GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1"}
MOST_CHARACTERS = 20_000


class Changes(BaseModel):
    repository: DirectoryPath
    base: str = Field(default="HEAD~1", pattern=r"^\w[\w./~^-]*$", description="The commit to compare with")
    head: str = Field(default="HEAD", pattern=r"^\w[\w./~^-]*$")


class Remark(BaseModel):
    file: str
    line: int = Field(ge=1)
    remark: str
    weight: Literal["must", "should", "could"]


class Remarks(BaseModel):
    remarks: list[Remark]


class Review(Remarks):
    verdict: Literal["merge", "change first"]


def git(run: Run, *words: str) -> str:
    assert isinstance(run.input, Changes)
    command = ["git", "-C", str(run.input.repository), *SAFELY, *words]
    done = subprocess.run(
        command,
        env=os.environ | NO_REMOTES,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise ValueError(done.stderr.strip())
    return done.stdout


def difference(run: Run, *words: str) -> str:
    assert isinstance(run.input, Changes)
    options = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short", "--relative")
    return git(run, *options, *words[:-1], "--end-of-options", run.input.base, run.input.head, "--", words[-1])


@tool
def changed_files(run: Run) -> list[str]:
    """The files that changed."""
    return [path for path in difference(run, "--name-only", "-z", ".").split("\0") if path]


@tool
def read_changes(run: Run, path: str) -> str:
    """What changed in a file, as a diff.

    Args:
        path: As `changed_files` names it
    """
    if path not in changed_files(run):
        raise ValueError(f"`{path}` has not changed")
    return difference(run, "--unified=10", path)[:MOST_CHARACTERS]


class Correctness(module[None, Remarks]):
    """Look for what is wrong: cases that were forgotten, errors that are swallowed."""


class Security(module[None, Remarks]):
    """Look for what an attacker could use: input that is trusted, secrets that show."""


class Clarity(module[None, Remarks]):
    """Look for what is hard to read: names, length, comments that say what and not why."""


class Reviewer(module[Changes, Review]):
    """You review changes. Read all that changed, then have it reviewed by all reviewers at once, and sum it up."""

    model = "openai/gpt-4o"
    temperature = 0
    max_steps = 10
    max_concurrency = 4
    tools = [changed_files, read_changes]
    branches = {"correctness": Correctness, "security": Security, "clarity": Clarity}


WRONG = Remark(file="pay.py", line=2, remark="A negative amount is taken.", weight="must")


def say(request: ModelRequest) -> Reply:
    """Return the scripted response to a request.

    Reviewers run concurrently, so the response depends on the content of the request and not on the order.
    """
    prompt, last = str(request.messages[0]["content"]), str(request.messages[-1]["content"])
    if prompt.endswith(str(Correctness.__doc__)):
        return finish(remarks=[WRONG])
    if prompt.endswith((str(Security.__doc__), str(Clarity.__doc__))):
        return finish(remarks=[])
    if last.startswith("<input"):
        return call("changed_files")
    if last == '["pay.py"]':
        return call("read_changes", path="pay.py")
    if last.startswith("diff"):
        return call("correctness") & call("security") & call("clarity")
    return finish(verdict="change first", remarks=[WRONG])


def small_repository(folder: Path) -> None:
    author = ("-c", "user.name=Oak", "-c", "user.email=oak@example.com", "-c", "commit.gpgsign=false")
    for text in ("def pay(amount): ...\n", "def pay(amount):\n    return account.take(amount)\n"):
        (folder / "pay.py").write_text(text, encoding="utf-8")
        for words in (("init", "-q"), ("add", "pay.py"), (*author, "commit", "-q", "-m", "A change")):
            subprocess.run(["git", "-C", str(folder), *words], check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        small_repository(Path(folder))
        run = Reviewer(model=ScriptedModel(say)).run(repository=folder)
    assert run.output is not None
    print(run.output.verdict)
    for remark in run.output.remarks:
        print(f"  {remark.file}:{remark.line}: {remark.remark} ({remark.weight})")
    print(f"Reviewers that ran concurrently: {len(run.branches)}")


if __name__ == "__main__":
    main()
