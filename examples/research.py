"""Research: an agent that reads in a folder, finds what it needs and says where it stands.

    python examples/research.py
    acorn run examples/research.py --folder docs --question "What is a branch?"

The folder is the caller's; the model only names files in it. A path that leads out of it, by `..`, by a link or by
beginning at the root, is an error for the model to read, and so is a hidden file such as `.env`. Files are read in
pieces and long lines are cut, so that a large one does not fill the conversation.

By itself it needs no key and no network: the model is then a script.
"""

import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, DirectoryPath, Field

from acorn import Run, module, tool
from acorn.testing import ScriptedModel, call, finish
from acorn.thread import ToolCallEvent

MOST_FILES, MOST_HITS, MOST_LINES, MOST_WIDTH, MOST_BYTES = 200, 30, 100, 400, 1_000_000


class Question(BaseModel):
    question: str
    folder: DirectoryPath = Field(description="Where to look")


class Source(BaseModel):
    path: str
    line: int = Field(ge=1)


class Answer(BaseModel):
    answer: str
    sources: list[Source] = Field(description="Where it stands")


def is_open(root: Path, file: Path) -> bool:
    """Whether a file is in the folder, and not hidden there."""
    return file.is_relative_to(root) and not any(part.startswith(".") for part in file.relative_to(root).parts)


def inside(run: Run, path: str) -> Path:
    """A path of the model's as a file in the folder of this run, and nowhere else."""
    assert isinstance(run.input, Question)
    root = run.input.folder.resolve()
    found = (root / path).resolve()  # links are followed before it is judged
    if not is_open(root, found):
        raise ValueError(f"`{path}` is not in the folder, or hidden")
    return found


def lines_of(file: Path) -> list[str]:
    if not file.is_file():
        raise ValueError("there is no such file; `list_files` has all of them")
    if file.stat().st_size > MOST_BYTES:
        raise ValueError(f"the file is larger than {MOST_BYTES} bytes")
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


def files_of(run: Run) -> list[Path]:
    """The files in the folder, relative to it; hidden ones and links to elsewhere are left out."""
    root = inside(run, ".")
    there = (file for file in sorted(root.rglob("*")) if file.is_file())
    open_to_all = (file for file in there if is_open(root, file) and is_open(root, file.resolve()))
    return [file.relative_to(root) for file in islice(open_to_all, MOST_FILES)]


@tool
def list_files(run: Run) -> list[str]:
    """The files there are."""
    return [file.as_posix() for file in files_of(run)]


@tool
def search(run: Run, text: str) -> list[str]:
    """Find lines that hold a text, whatever the case.

    Args:
        text: A word or a few, exactly as they may stand there
    """
    if not text.strip():
        raise ValueError("there is nothing to search for")

    found = list(islice(hits(run, text.casefold()), MOST_HITS + 1))
    if len(found) > MOST_HITS:
        found[-1] = "and more: search for something rarer"
    return found or [f"nothing found for {text!r}"]


def hits(run: Run, text: str) -> Iterator[str]:
    for file in files_of(run):
        path = inside(run, str(file))
        if path.stat().st_size > MOST_BYTES:
            continue
        for number, line in enumerate(lines_of(path), start=1):
            if text in line.casefold():
                yield f"{file.as_posix()}:{number}: {cut(line.strip())}"


def cut(line: str) -> str:
    return line if len(line) <= MOST_WIDTH else f"{line[:MOST_WIDTH]} (cut)"


@tool
def read_file(run: Run, path: str, first_line: int = 1) -> str:
    """Read a part of a file.

    Args:
        path: As `list_files` and `search` name it
        first_line: Where to begin
    """
    lines = lines_of(inside(run, path))
    part = [cut(line) for line in lines[max(first_line, 1) - 1 :][:MOST_LINES]]
    left = len(lines) - max(first_line, 1) + 1 - len(part)
    return "\n".join([*part, f"({left} more lines)"] if left > 0 else part)


class Researcher(module[Question, Answer]):
    """Answer the question from the files in the folder, and from nothing else.

    Say where it stands. If it stands nowhere, say so.
    """

    model = "openai/gpt-4o"
    temperature = 0
    max_steps = 10
    tools = [list_files, search, read_file]


def script() -> ScriptedModel:
    """What the model will say: it also tries to leave the folder."""
    return ScriptedModel(
        [
            call("list_files") & call("search", text="sprout"),
            call("read_file", path="notes/oaks.md", first_line=2) & call("read_file", path="../../etc/passwd"),
            finish(answer="In spring.", sources=[Source(path="notes/oaks.md", line=3)]),
        ]
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes"
        notes.mkdir()
        (notes / "oaks.md").write_text("# Oaks\n\nAcorns sprout in spring.\n", encoding="utf-8")
        run = Researcher(model=script()).run(question="When do acorns sprout?", folder=folder)
    read = {message.get("tool_call_id"): message["content"] for message in run.history if message["role"] == "tool"}
    for event in run.thread:
        if isinstance(event, ToolCallEvent) and event.tool_name != "__finish__":
            print(f"{event.tool_name}({', '.join(f'{name}={value!r}' for name, value in event.args.items())})")
            print("    " + read[event.tool_call_id].strip().replace("\n", "\n    "))
    assert run.output is not None
    print(f"\n{run.output.answer}")
    for source in run.output.sources:
        print(f"    {source.path}, line {source.line}")


if __name__ == "__main__":
    main()
