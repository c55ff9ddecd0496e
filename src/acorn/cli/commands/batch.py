"""`acorn batch`: a run for each line of a file, with a progress bar; the answers are lines of another."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from acorn import AcornError, Paused
from acorn._inside import Batch, Item
from acorn.cli.options import OWN
from acorn.cli.output import (
    FAILED,
    FINE,
    INTERRUPTED,
    WAITING,
    CommandError,
    error_text,
    json_text,
    message_of,
    plural,
    write,
    write_line,
)
from acorn.cli.targets import load, named_store
from acorn.types import JsonObject


def batch(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="FILE_OR_MODULE[:CLASS]", help="Where the module is.")],
    rows: Annotated[str, typer.Argument(metavar="INPUT", help="JSONL or CSV, a row an input; `-` is standard input.")],
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Where the answers go, as JSONL.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="How many runs at a time.")] = 8,
    id: Annotated[
        str | None, typer.Option("--id", help="With a store: the same command again does nothing twice.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="FIELD", help="The field that names a row.")] = None,
    max_cost: Annotated[float | None, typer.Option("--max-cost", help="Dollars after which none is begun.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what had failed.")] = False,
    model: Annotated[str | None, typer.Option("--model", help=OWN["model"])] = None,
    store: Annotated[str | None, typer.Option("--store", metavar="FILE|URL", help=OWN["store"])] = None,
    debug: Annotated[bool, typer.Option("--debug", help=OWN["debug"])] = False,
) -> int:
    """Run a module for every row of a file.

    Each answer is a line with its index, its output or its error, its run and its cost, written as the item ends.
    """
    out = context.obj.set_aside()
    agent = load(target, debug=debug)
    changes = {"model": model, "store": named_store(store, agent.store)}
    listed = _rows(rows)
    try:
        agent = agent.using(**{name: value for name, value in changes.items() if value is not None})
        items = agent.map(
            listed,
            concurrency=concurrency,
            id=id,
            key=None if key is None else lambda row: row[key],
            max_cost=max_cost,
            retry_failed=retry_failed,
        )
    except AcornError as error:
        raise CommandError(message_of(error), debug=debug) from error
    with _opened(output, out) as file:
        try:
            for item in _shown(items):
                write(file, f"{json_text(_line(item))}\n")
        except KeyboardInterrupt:
            _say_how_to_go_on(items, id)
            return INTERRUPTED
    progress = items.progress
    write_line(
        f"{plural(progress.done, 'run')} done, {progress.failed:,} failed, {progress.waiting:,} waiting, "
        f"{progress.usage.total_tokens:,} tokens{'' if progress.cost is None else f', ${progress.cost:.4f}'}"
    )
    return FAILED if progress.failed else WAITING if progress.waiting else FINE


def _rows(file: str) -> list[Any]:
    """All rows, so that a file which is wrong somewhere is told before the first run."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"`{file}` cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if file.lower().endswith(".csv"):
        return list(csv.DictReader(io.StringIO(text, newline="")))
    found: list[Any] = []
    for number, line in enumerate(text.split("\n"), start=1):  # a text may hold what else Unicode calls a line's end
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise CommandError(f"`{file}`, line {number}, is no JSON: {error}") from error
    return found


@contextmanager
def _opened(file: str | None, out: TextIO) -> Generator[TextIO]:
    if file is None:
        yield out
        return
    try:
        opened = open(file, "w", encoding="utf-8")  # noqa: SIM115 - closed below, and its errors are our words
    except OSError as error:
        raise CommandError(f"`{file}` cannot be written: {error.strerror or error}") from error
    with opened:
        yield opened


def _line(item: Item[Any]) -> JsonObject:
    line: JsonObject = {"index": item.index}
    if item.key is not None:
        line["key"] = item.key
    if item.error is not None:
        line["error"] = {"type": type(item.error).__name__, "message": error_text(item.error)}
    elif isinstance(item.output, Paused):
        line["waiting"] = [{"id": request.id, "question": request.question} for request in item.output.requests]
    else:
        line["output"] = item.output
    run = item.run
    return {**line, "run": None if run is None else run.id, "cost": None if run is None else run.cost}


def _shown(batch: Batch[Any]) -> Iterator[Item[Any]]:
    """The items, with a bar on a terminal."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield from batch
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[account]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=batch.progress.total, account="")
        for item in batch:
            far = batch.progress
            cost = "" if far.cost is None else f" · ${far.cost:.4f}"
            account = f"{far.failed} failed · {far.waiting} waiting · {far.usage.total_tokens:,} tokens{cost}"
            bar.update(task, completed=far.ended, total=far.total, account=account)
            yield item


def _say_how_to_go_on(batch: Batch[Any], id: str | None) -> None:
    ended = f"stopped after {plural(batch.progress.ended, 'item')}"
    if id is None:
        write_line(f"{ended}; with `--id` and a store, the same command would go on from here")
    else:
        write_line(f"{ended}; the same command goes on from here")
