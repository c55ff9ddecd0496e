"""The commands for stored runs: `acorn runs`, `acorn answer`, `acorn cancel`, `acorn delete` and `acorn show`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, TextIO, cast

import typer
from rich.text import Text
from rich.tree import Tree

import acorn
from acorn import Run, StoreError
from acorn._inside import parse_json, read_stored_entries, record_to_json, stored_instance, tree_entries
from acorn._inside.run_tree import RunTree, tree_of
from acorn.cli.errors import CommandError, os_errors, redactor
from acorn.cli.options import RunArgument, SourceArgument, StoredRunsOption
from acorn.cli.output import make_table, print_json, rich_console, write, write_line
from acorn.cli.targets import (
    find_run_id,
    open_chosen_store,
    quoted_target,
    read_run_file,
    short_id,
    store_of,
    store_option,
)
from acorn.cli.text import clean, one_line, plural, seconds_text, totals_text
from acorn.cli.views import Pen, PlainView, draw_run
from acorn.journal import Entry
from acorn.stores.port import RunFacts, Status, Store
from acorn.testing.as_python import as_python
from acorn.thread import serialize_thread_to_xml

if TYPE_CHECKING:
    from acorn.stores.postgres import PostgresStore
    from acorn.stores.postgres.queue import AgentFacts, WorkerFacts

_WIDTH = 160
"""The width of tables and trees if standard output is not a terminal."""
_TEXT_COLUMNS = ("run", "status", "agent", "model", "worker", "agents")
_STYLES = {"done": "green", "failed": "red", "waiting": "yellow", "running": "cyan", "queued": "cyan"}


# Listing


def runs(
    status: Annotated[
        list[str] | None, typer.Option(metavar="STATUS", help="List only runs with this status. Can be repeated.")
    ] = None,
    agent: Annotated[str | None, typer.Option(metavar="CLASS", help="List only runs of this class.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The maximum number of runs.")] = 50,
    fleet: Annotated[
        bool, typer.Option("--fleet", help="List the workers of a PostgreSQL store and the queues of their agents.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON array of the runs, or a JSON object of the fleet.")
    ] = False,
    store: StoredRunsOption = None,
) -> None:
    """List the runs of a store, newest first, and their open requests for human input."""
    opened_store = open_chosen_store(store)
    if fleet:
        _print_fleet(opened_store, json=json)
        return
    stored_runs = acorn.runs(opened_store)
    listed = stored_runs.list(status=cast(tuple[Status, ...], tuple(status or ())), agent=agent, limit=limit)
    if json:
        print_json([record_to_json(facts) for facts in listed], sys.stdout)
    elif not listed:
        filtered = " with this status or class" if status or agent else ""
        write_line(f"There are no runs{filtered} in {opened_store.name}.")
    else:
        headings = ("run", "status", "agent", "model", "steps", "tokens", "cost", "seconds", "started")
        _print_table(headings, map(_run_row, listed))
        for request in stored_runs.requests():
            choices = f" ({', '.join(request.choices)})" if request.choices else ""
            write(sys.stdout, f"? {request.id[:8]}  {one_line(request.question)}{one_line(choices)}\n")


def _run_row(facts: RunFacts) -> list[str | Text]:
    return [
        one_line(short_id(facts.id), 60),
        Text(facts.status, style=_STYLES.get(facts.status, "dim")),
        one_line(facts.agent.rpartition(":")[2], 40),
        one_line(facts.model or "", 40),
        str(facts.steps),
        f"{facts.usage.total_tokens:,}",
        "" if facts.cost is None else f"${facts.cost:.4f}",
        seconds_text(facts.seconds),
        facts.started.astimezone().strftime("%Y-%m-%d %H:%M"),
    ]


def _print_fleet(store: Store, *, json: bool) -> None:
    if not hasattr(store, "fleet"):
        raise CommandError(
            f"`--fleet` needs a PostgreSQL store, because {store.name} has no workers. Use `--store postgresql://...`."
        )
    workers, agents = cast("PostgresStore", store).fleet()
    if json:
        worker_data = [{**worker._asdict(), "started": worker.started.isoformat()} for worker in workers]
        print_json({"workers": worker_data, "agents": [agent._asdict() for agent in agents]}, sys.stdout)
        return
    if workers:
        _print_table(("worker", "runs", "limit", "agents", "since"), map(_worker_row, workers))
        write(sys.stdout, "\n")
    else:
        write_line(f"No worker is running. To start one: acorn work FILE:CLASS --store {store.name}")
    if agents:
        headings = ("agent", "queued", "oldest", "delayed", "running", "waiting", "done / min", "failed / h")
        _print_table(headings, map(_agent_row, agents))
        write(sys.stdout, "\n")
    queued = sum(agent.queued for agent in agents)
    done = sum(agent.done for agent in agents)
    write_line(f"{plural(len(workers), 'worker')}, {queued:,} queued, {done:,} done in the last minute")


def _worker_row(worker: WorkerFacts) -> list[str | Text]:
    names = ", ".join(name.rpartition(":")[2] for name in worker.agents)
    since = worker.started.astimezone().strftime("%Y-%m-%d %H:%M")
    host = f"{one_line(worker.host, 40)} {worker.pid}"
    return [host, f"{worker.running:,}", f"{worker.concurrency:,}", one_line(names, 60), since]


def _agent_row(agent: AgentFacts) -> list[str | Text]:
    oldest = "" if agent.oldest is None else seconds_text(agent.oldest)
    counts = (agent.delayed, agent.running, agent.waiting, agent.done, agent.failed)
    return [one_line(agent.agent, 60), f"{agent.queued:,}", oldest, *(f"{count:,}" for count in counts)]


def _print_table(headings: Iterable[str], rows: Iterable[Iterable[str | Text]]) -> None:
    table = make_table(headings, rows, _TEXT_COLUMNS)
    table.columns[0].overflow = "fold"  # An id that a user chose stays complete.
    with rich_console(sys.stdout, _WIDTH) as console:
        console.print(table)


# Changing


def answer(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The id of the request, or its first characters.")],
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="The answer: yes or no for an approval, or text or JSON.")
    ],
    store: StoredRunsOption = None,
) -> None:
    """Answer a request for human input.

    For an approval, VALUE may also be {"approved": true, "arguments": {...}} or {"approved": false, "reason": "..."}.
    The run continues after a worker or `acorn resume` resumes it.
    """
    opened_store = open_chosen_store(store)
    matching = [other for other in opened_store.requests() if other.id.startswith(request)]
    if len(matching) > 1:
        raise CommandError(f"`{request}` matches {len(matching)} requests. Use more characters of the id.")
    acorn.runs(opened_store).answer(matching[0].id if matching else request, parse_json(value))
    try:
        root = opened_store.read(matching[0].run_id)[0].facts.root
        is_queued = opened_store.statuses([root]).get(root) in ("queued", "running", "done")
    except StoreError:  # The user of a database may be allowed to answer, but not to read.
        write_line("Answered.")
        return
    if is_queued:
        write_line("Answered. A worker resumes the run.")
    else:
        agent = quoted_target(opened_store.read(root)[0])
        command = f"acorn resume {quote(short_id(root))} --agent {agent}{store_option(store)}"
        write_line(f"Answered. To resume the run: {command}")


def cancel(run: RunArgument, store: StoredRunsOption = None) -> None:
    """Cancel a run.

    A paused run ends immediately. A run in progress ends at its next step.
    """
    opened_store = open_chosen_store(store)
    opened_store.cancel(find_run_id(opened_store, run))


def delete(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The id of the run, or its first characters.")
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="DATE", help="Delete all finished runs that started before this date, such as `2026-01-31`."
        ),
    ] = None,
    store: StoredRunsOption = None,
) -> None:
    """Delete one run, or all finished runs that started before a date."""
    if (run is None) == (before is None):
        raise CommandError("`acorn delete` needs either the id of a run or `--before DATE`.")
    opened_store = open_chosen_store(store)
    if run is not None:
        opened_store.delete(find_run_id(opened_store, run))
        return
    finished = opened_store.list(status=("done",), before=_parse_date(str(before)), limit=None)
    for facts in finished:
        opened_store.delete(facts.id)
    write_line(f"Deleted {plural(len(finished), 'run')}.")


def _parse_date(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise CommandError(f"`--before {text}` is not a date. Use a date such as `2026-01-31`.") from None


# Showing


def show(
    file: SourceArgument,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Print the progress of a run until it ends. Another process may drive the run."),
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Print every step and longer texts.")] = False,
    xml: Annotated[bool, typer.Option("--xml", help="Print the thread as one XML document.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run as JSON, as `--save` writes it.")] = False,
    python: Annotated[
        bool, typer.Option("--python", help="Print the run as a Python test with a scripted model.")
    ] = False,
    html: Annotated[
        str | None, typer.Option("--html", metavar="OUT.html", help="Write the run and its viewer to one HTML file.")
    ] = None,
    store: StoredRunsOption = None,
) -> None:
    """Print a stored or saved run as a tree of steps, tool calls and branches."""
    forms = (("--xml", xml), ("--json", as_json), ("--python", python), ("--html", html), ("--follow", follow))
    chosen = [name for name, is_chosen in forms if is_chosen]
    if len(chosen) > 1:
        raise CommandError(f"`{chosen[0]}` and `{chosen[1]}` cannot be combined. Remove one of them.")
    opened_store = store_of(file, store)
    if html is not None:
        _write_html(file, opened_store, html)
        return
    if follow:
        _follow(file, opened_store)
        return
    run = read_run_file(file) if opened_store is None else acorn.runs(opened_store).get(find_run_id(opened_store, file))
    if python or xml or as_json:
        text = (
            _as_test(run, opened_store) if python else run.to_json() if as_json else serialize_thread_to_xml(run.thread)
        )
        write(sys.stdout, f"{(clean(text) if sys.stdout.isatty() else text).rstrip()}\n")
    elif opened_store is not None:
        print_stored_run(opened_store, run, is_full=full, out=sys.stdout)
    else:
        _print_run(Path(file).name, run.stop_reason, run, tree_entries(run), sys.stdout, is_full=True)


def print_stored_run(store: Store, run: Run, *, is_full: bool, out: TextIO) -> None:
    """Print a stored run as a tree, followed by its model and totals."""
    status, rows = store.follow(run.id)
    _print_run(run.id, status, run, read_stored_entries(row.entry for row in rows), out, is_full=is_full)


def _print_run(
    name: str, status: str | None, run: Run, entries: Iterable[Entry], out: TextIO, *, is_full: bool
) -> None:
    fork = run.forked_from
    origin = (
        "" if fork is None else f", forked from {one_line(short_id(fork.run or 'events'))} before step {fork.before}"
    )
    heading = Text.assemble((one_line(name), "bold"), (f"  {status or 'stopped'}{origin}", "dim"))
    drawing = Tree(heading, guide_style="dim")
    with rich_console(out, _WIDTH) as console:
        pen = Pen(0.0, console.width, console.options.ascii_only, is_over=True, is_full=is_full)
        draw_run(tree_of(entries).root, drawing, pen)
        console.print(drawing)
    totals = totals_text(run.steps, run.usage.total_tokens, run.cost, run.seconds)
    write(out, f"{one_line(run.model or 'no model yet')} · {totals}\n")


def _follow(run: str, store: Store | None) -> None:
    if store is None:
        raise CommandError("`--follow` needs a stored run. Use the id of a run and `--store`.")

    def print_line(line: str) -> None:
        write(sys.stdout, f"{line}\n")

    run_id = find_run_id(store, run)
    facts = store.read(run_id)[0].facts
    view = PlainView(facts.agent, facts.model or "no model yet", RunTree(), print_line)
    for entry in acorn.runs(store).follow(run_id):
        view.add_entry(entry)
    view.end(store.read(run_id)[0].facts.status)


def _as_test(run: Run, store: Store | None) -> str:
    """Return a Python test that repeats a run.

    `store` is the store that contains the run, or None if the run was read from a file. Only a store contains the name
    of the agent class and the settings of the agent.
    """
    if store is None:
        return as_python(run, redactor=redactor())
    stored = store.read(run.id)[0]
    return as_python(run, module=stored.header.agent, settings=stored_instance(stored).settings, redactor=redactor())


def _write_html(source: str, store: Store | None, out: str) -> None:
    from acorn.web.page import files, run_index

    view = (
        run_index.load_saved_run(Path(source), Path(source).stem)
        if store is None
        else run_index.StoreRunIndex(store).view(find_run_id(store, source))
    )
    if view is None:
        raise CommandError(f"`{source}` is a branch. Use the id of the root run, which contains the branch.")
    with os_errors(f"Cannot write `{out}`"):
        Path(out).write_bytes(files.single_page(view))
    write_line(f"Wrote {one_line(out)}.")
