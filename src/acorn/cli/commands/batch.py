"""The command `acorn batch`, which runs an agent for each row of a file and writes the results as JSONL."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from acorn import Paused
from acorn._inside.runs import Batch, Item
from acorn.cli.errors import CommandError, ExitCode, error_text, os_errors
from acorn.cli.options import ConcurrencyOption, DebugOption, ModelOption, StoreOption, Target
from acorn.cli.output import write, write_line
from acorn.cli.targets import change_settings, choose_store, load_agent
from acorn.cli.text import json_text, plural
from acorn.types import JsonObject


def batch(
    context: typer.Context,
    target: Target,
    rows: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="A JSONL or CSV file with one input per row, or `-` for JSONL on standard input."
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The file for the results, as JSONL. Default: standard output."
        ),
    ] = None,
    concurrency: ConcurrencyOption = 8,
    id: Annotated[
        str | None,
        typer.Option(help="The name of the batch. With a name and a store, the same command resumes the batch."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FIELD", help="The input field whose value identifies a row.")
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="Stop starting runs when the total cost reaches this amount in dollars.")
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed rows again.")] = False,
    model: ModelOption = None,
    store: StoreOption = None,
    debug: DebugOption = False,
) -> int:
    """Run a module for every row of a file.

    Each result is one JSON line with the index, the output or the error, the id of the run and the cost. acorn writes
    the line when the run of the row has ended.
    """
    out = context.obj.reserve_stdout()
    agent = load_agent(target)
    inputs = _read_rows(rows)
    for number, row in enumerate(inputs, start=1):
        if key is not None and (not isinstance(row, dict) or key not in row):
            raise CommandError(f"Row {number} of `{rows}` has no field `{key}`. Use a field that every row has.")
    chosen_store = choose_store(store, agent.store)
    if id is not None and chosen_store is None:
        name = type(agent).__name__
        raise CommandError(f"`--id` needs a store, but `{name}` has no store. Use `--store`, as in `--store runs.db`.")
    items = change_settings(agent, model=model, store=chosen_store).map(
        inputs,
        concurrency=concurrency,
        id=id,
        key=None if key is None else lambda row: row[key],
        max_cost=max_cost,
        retry_failed=retry_failed,
    )
    with os_errors(f"Cannot write `{output}`"):
        results = nullcontext(out) if output is None else open(output, "w", encoding="utf-8")  # noqa: SIM115 - closed below
    with results as file:
        try:
            for item in _show_progress(items):
                write(file, f"{json_text(_result_line(item))}\n")
        except KeyboardInterrupt:
            hint = "To be able to resume a batch, use `--id` and a store."
            if id is not None:
                hint = "To resume the batch, repeat the command."
            write_line(f"Stopped after {plural(items.progress.ended, 'item')}. {hint}")
            return ExitCode.INTERRUPTED
    progress = items.progress
    write_line(
        f"{plural(progress.done, 'run')} done, {progress.failed:,} failed, {progress.waiting:,} waiting, "
        f"{progress.usage.total_tokens:,} tokens{'' if progress.cost is None else f', ${progress.cost:.4f}'}"
    )
    return ExitCode.FAILED if progress.failed else ExitCode.WAITING if progress.waiting else ExitCode.SUCCESS


def _read_rows(file: str) -> list[Any]:
    """Return all rows of the input file. Reading them first reports errors in the file before the first run starts."""
    try:
        with os_errors(f"Cannot read `{file}`"):
            text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CommandError(f"Cannot read `{file}`: {error}. Save the file as UTF-8.") from error
    if file.lower().endswith(".csv"):
        return list(csv.DictReader(io.StringIO(text, newline="")))
    rows: list[Any] = []
    # `splitlines` would also split at Unicode line separators inside a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise CommandError(
                    f"Line {number} of `{file}` is not valid JSON: {_json_problem(error)}. "
                    f"Write one JSON value per line."
                ) from error
    return rows


def _json_problem(error: ValueError) -> str:
    return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _result_line(item: Item[Any]) -> JsonObject:
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


def _show_progress(batch: Batch[Any]) -> Iterator[Item[Any]]:
    """Yield the items of a batch, and draw a progress bar if standard error is a terminal."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield from batch
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[totals]}"), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=batch.progress.total, totals="")
        for item in batch:
            progress = batch.progress
            cost = "" if progress.cost is None else f" · ${progress.cost:.4f}"
            tokens = f"{progress.usage.total_tokens:,} tokens"
            totals = f"{progress.failed} failed · {progress.waiting} waiting · {tokens}{cost}"
            bar.update(task, completed=progress.ended, total=progress.total, totals=totals)
            yield item
