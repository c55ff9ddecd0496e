"""Research: an agent that searches the files of a folder and returns an answer with its sources.

    python examples/research.py
    acorn run examples/research.py --folder docs --question "What is a branch?"

The caller chooses the folder, and the model may read only files inside the folder. If a path leads out of the folder
(through `..`, a symbolic link or an absolute path), the tool returns an error to the model. Hidden files such as `.env`
cause an error as well. The tools read only a part of a long file and cut long lines, so that a large file does not fill
the conversation.

The first command needs no API key and no network, because it uses a scripted model.
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


def is_readable(root: Path, file: Path) -> bool:
    """Return whether a file is inside the folder and not hidden."""
    return file.is_relative_to(root) and not any(part.startswith(".") for part in file.relative_to(root).parts)


def resolve_path(run: Run, path: str) -> Path:
    """Convert a path from the model to a file in the folder of the run, or raise `ValueError`."""
    assert isinstance(run.input, Question)
    root = run.input.folder.resolve()
    file = (root / path).resolve()  # Resolve symbolic links before the check.
    if not is_readable(root, file):
        raise ValueError(f"`{path}` is not in the folder, or hidden")
    return file


def lines_of(file: Path) -> list[str]:
    if not file.is_file():
        raise ValueError("there is no such file; `list_files` has all of them")
    if file.stat().st_size > MOST_BYTES:
        raise ValueError(f"the file is larger than {MOST_BYTES} bytes")
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


def files_of(run: Run) -> list[Path]:
    """Return the relative paths of all files in the folder, except hidden files and links that lead out of it."""
    root = resolve_path(run, ".")
    files = (file for file in sorted(root.rglob("*")) if file.is_file())
    readable = (file for file in files if is_readable(root, file) and is_readable(root, file.resolve()))
    return [file.relative_to(root) for file in islice(readable, MOST_FILES)]


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

    lines = list(islice(hits(run, text.casefold()), MOST_HITS + 1))
    if len(lines) > MOST_HITS:
        lines[-1] = "and more: search for something rarer"
    return lines or [f"nothing found for {text!r}"]


def hits(run: Run, text: str) -> Iterator[str]:
    for file in files_of(run):
        path = resolve_path(run, str(file))
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
    lines = lines_of(resolve_path(run, path))
    excerpt = [cut(line) for line in lines[max(first_line, 1) - 1 :][:MOST_LINES]]
    left = len(lines) - max(first_line, 1) + 1 - len(excerpt)
    return "\n".join([*excerpt, f"({left} more lines)"] if left > 0 else excerpt)


class Researcher(module[Question, Answer]):
    """Answer the question from the files in the folder, and from nothing else.

    Say where it stands. If it stands nowhere, say so.
    """

    model = "openai/gpt-4o"
    temperature = 0
    max_steps = 10
    tools = [list_files, search, read_file]


def script() -> ScriptedModel:
    """Return a model with scripted answers, which also tries to read a file outside the folder."""
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
