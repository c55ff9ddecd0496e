"""`acorn runs --fleet`: the workers of a PostgreSQL store at a glance, and what they have to do.

`acorn runs`, `answer`, `cancel` and `delete`: the runs of a store at a glance, and what can be done to them.

`acorn show`: a run that was kept, in a store or in a file, step by step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

import acorn
from acorn import Run
from acorn._inside import describe_blobs, read_stored_entries, stored_settings
from acorn.cli.drawing import Pen, draw
from acorn.cli.output import (
    FINE,
    CommandError,
    clean,
    one_line,
    plural,
    print_json,
    seconds_text,
    totals_text,
    without_keys,
    write,
    write_line,
)
from acorn.cli.targets import STORE_HELP, as_usage_error, named_store, short, store_of, value_of, whole_id
from acorn.cli.view_tree import RunTree
from acorn.cli.views import PlainView
from acorn.errors import StoreError
from acorn.journal import Entry
from acorn.stores.port import RunFacts, Store
from acorn.testing.as_python import as_python
from acorn.thread import AgentEvent, dump_events, parse_events, serialize_thread_to_xml
from acorn.thread.to_journal import thread_entries
from acorn.types import ForkedFrom, JsonObject, Request


def show_fleet(book: Store, *, json: bool) -> int:
    look: Any = getattr(book, "fleet", None)
    if look is None:
        raise CommandError(f"`--fleet` is for a PostgreSQL store, and {book.name} is none; it has no workers")
    with as_usage_error():
        workers, agents = look()
    if json:
        shown = [{**each._asdict(), "started": each.started.isoformat()} for each in workers]
        print_json({"workers": shown, "agents": [each._asdict() for each in agents]}, sys.stdout)
        return FINE
    if not workers:
        write_line(f"no worker lives; start one: acorn work FILE:CLASS --store {book.name}")
    _print(("worker", "runs", "at a time", "agents", "since"), [_worker(each) for each in workers])
    headings = ("agent", "queued", "oldest", "delayed", "running", "waiting", "done / min", "failed / h")
    _print(headings, [_agent(each) for each in agents])
    queued = sum(each.queued for each in agents)
    write_line(
        f"{plural(len(workers), 'worker')}, {queued:,} queued, {sum(each.done for each in agents):,} done in a minute"
    )
    return FINE


def _worker(each: Any) -> list[str]:
    names = ", ".join(name.rpartition(":")[2] for name in each.agents)
    since = each.started.astimezone().strftime("%Y-%m-%d %H:%M")
    return [
        f"{one_line(each.host, 40)} {each.pid}",
        f"{each.running:,}",
        f"{each.concurrency:,}",
        one_line(names, 60),
        since,
    ]


def _agent(each: Any) -> list[str]:
    oldest = "" if each.oldest is None else seconds_text(each.oldest)
    counts = (each.delayed, each.running, each.waiting, each.done, each.failed)
    return [one_line(each.agent, 60), f"{each.queued:,}", oldest, *(f"{count:,}" for count in counts)]


def _print(headings: tuple[str, ...], listed: list[list[str]]) -> None:
    if not listed:
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="left" if at == 0 or heading == "agents" else "right", no_wrap=True)
    for row in listed:
        table.add_row(*map(Text, row))
    console = Console(file=sys.stdout) if sys.stdout.isatty() else Console(file=sys.stdout, width=160)
    with console.capture() as drawn:
        console.print(table)
    write(sys.stdout, f"{drawn.get()}\n")


StoreOption = Annotated[str | None, typer.Option("--store", metavar="FILE|URL", help=STORE_HELP)]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The id of the run; its beginning is enough.")]

_STYLES = {"done": "green", "failed": "red", "waiting": "yellow", "running": "cyan", "queued": "cyan"}


def runs(
    status: Annotated[
        list[str] | None, typer.Option("--status", metavar="STATE", help="Only runs in this state; may be repeated.")
    ] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="CLASS", help="Only runs of this class.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many, the newest first.")] = 50,
    fleet: Annotated[bool, typer.Option("--fleet", help="The workers of the store, and what waits for them.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON array; of the fleet, an object.")] = False,
    store: StoreOption = None,
) -> int:
    """List the runs of a store, the newest first, and what people are asked."""
    book = store_of(store)
    if fleet:
        return show_fleet(book, json=json)
    kept = acorn.runs(book)
    with as_usage_error():
        listed = kept.list(status=tuple(status or ()), agent=agent, limit=limit)  # type: ignore[arg-type]
        requests = kept.requests()
    if json:
        print_json([_plain(facts) for facts in listed], sys.stdout)
        return FINE
    if not listed:
        write_line(f"no runs in {book.name}")
        return FINE
    _print_runs(listed)
    for request in requests:
        write(sys.stdout, f"{_question(request)}\n")
    return FINE


def answer(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The id of the request; its beginning is enough.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="JSON where it is JSON (`true`), otherwise text.")],
    store: StoreOption = None,
) -> int:
    """Answer what a run asks of people; it goes on when it is resumed."""
    book = store_of(store)
    with as_usage_error():
        found = [each for each in book.requests() if each.id.startswith(request)]
        if len(found) > 1:
            raise CommandError(f"`{request}` may be {len(found)} requests; write more of its id")
        whole = found[0].id if found else request
        acorn.runs(book).answer(whole, value_of(value))
        root = book.read(found[0].run_id)[0].facts.root
        is_queued = book.statuses([root]).get(root) in ("queued", "running", "done")
    if is_queued:
        write_line("answered; a worker goes on with it")
    else:
        write_line(f"answered; go on with: acorn resume {short(root)}{_where(store)}")
    return FINE


def cancel(run: RunArgument, store: StoreOption = None) -> int:
    """End a run: one that rests at once, one that is driven somewhere at its next step."""
    book = store_of(store)
    with as_usage_error():
        book.cancel(whole_id(book, run))
    return FINE


def delete(
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="The id of the run, or its beginning.")] = None,
    before: Annotated[
        str | None, typer.Option("--before", metavar="DATE", help="All done ones that began before, `2026-01-31`.")
    ] = None,
    store: StoreOption = None,
) -> int:
    """Forget a run, or the done ones of long ago."""
    if (run is None) == (before is None):
        raise CommandError("give a run, or `--before DATE`")
    book = store_of(store)
    with as_usage_error():
        if run is not None:
            book.delete(whole_id(book, run))
            return FINE
        found = book.list(status=("done",), before=_date(str(before)), limit=None)
        for facts in found:
            book.delete(facts.id)
    write_line(f"deleted {plural(len(found), 'run')}")
    return FINE


def _date(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise CommandError(f"`--before {text}` is no date; write one such as `2026-01-31`") from None
    return found.astimezone(UTC)


def _where(store: str | None) -> str:
    return "" if store is None else f" --store {store}"


def _plain(facts: RunFacts) -> JsonObject:
    plain = {each.name: getattr(facts, each.name) for each in fields(facts)}
    usage = {name: getattr(facts.usage, name) for name in facts.usage.__slots__}
    return {**plain, "usage": usage, "started": facts.started.isoformat(), "updated": facts.updated.isoformat()}


def _print_runs(listed: Any) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("run", "state", "agent", "model"):
        table.add_column(heading, overflow="fold" if heading == "run" else "ellipsis", no_wrap=True)
    for heading in ("steps", "tokens", "cost", "seconds", "began"):
        table.add_column(heading, justify="right", no_wrap=True)
    for facts in listed:
        table.add_row(
            Text(one_line(short(facts.id), 60)),
            Text(facts.status, style=_STYLES.get(facts.status, "dim")),
            Text(one_line(facts.agent.rpartition(":")[2], 40)),
            Text(one_line(facts.model or "", 40)),
            str(facts.steps),
            f"{facts.usage.total_tokens:,}",
            "" if facts.cost is None else f"${facts.cost:.4f}",
            seconds_text(facts.seconds),
            facts.started.astimezone().strftime("%Y-%m-%d %H:%M"),
        )
    console = Console(file=sys.stdout) if sys.stdout.isatty() else Console(file=sys.stdout, width=160)
    with console.capture() as drawn:
        console.print(table)
    write(sys.stdout, drawn.get())


def _question(request: Request) -> str:
    choices = f" ({', '.join(request.choices)})" if request.choices else ""
    return f"? {request.id[:8]}  {one_line(request.question)}{one_line(choices)}"


def show(
    file: Annotated[
        str,
        typer.Argument(
            metavar="RUN|FILE",
            help="A run of the store, by the beginning of its id, or a file of `acorn run --save` or `run.to_json()`.",
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on while the run goes on, wherever it is driven.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Every text as a whole.")] = False,
    xml: Annotated[bool, typer.Option("--xml", help="Print the thread as one XML document.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the events as JSON.")] = False,
    python: Annotated[
        bool, typer.Option("--python", help="Print the run as a test with a scripted model, ready to paste.")
    ] = False,
    html: Annotated[
        str | None, typer.Option("--html", metavar="OUT.html", help="Write the run and its viewer into one file.")
    ] = None,
    store: StoreOption = None,
) -> int:
    """Show a run that was kept step by step, its branches as a tree."""
    run: Run | None
    wanted = (("--xml", xml), ("--json", as_json), ("--python", python), ("--html", html), ("--follow", follow))
    forms = [name for name, is_wanted in wanted if is_wanted]
    if len(forms) > 1:
        raise CommandError(f"`{forms[0]}` and `{forms[1]}` exclude each other")
    if html is not None:
        return _write_html(file, store, html)
    if named_store(store) is not None and not Path(file).is_file():
        book = store_of(store)
        run_id = whole_id(book, file)
        if follow:
            return _follow(book, run_id)
        with as_usage_error():
            run = acorn.runs(book).get(run_id)
        if python:
            return _print_python(run, book)
        if not (xml or as_json):
            draw_kept(book, run, is_whole=full, out=sys.stdout)
            return FINE
        events = run.thread
    elif follow:
        raise CommandError("`--follow` is for the runs of a store")
    else:
        events, run = read_kept(file)
    if python:
        if run is None:
            raise CommandError(
                f"`{file}` holds events only, as `--save` writes them; `--python` needs a record: "
                "keep the run by `acorn run --store runs.db`, or write the file by `run.to_json()`"
            )
        return _print_python(run, None)
    if as_json:
        print_json(describe_blobs(dump_events(events)), sys.stdout)
    elif xml:
        text = serialize_thread_to_xml(events)
        write(sys.stdout, f"{clean(text) if sys.stdout.isatty() else text}\n")
    else:
        _print_run(Path(file).name, events, None if run is None else run.forked_from)
    return FINE


def _write_html(source: str, option: str | None, out: str) -> int:
    from acorn.web.page.files import single_page
    from acorn.web.page.run_index import StoreRunIndex, read_file
    from acorn.web.redact import PageRedactor

    with as_usage_error():
        if named_store(option) is not None and not Path(source).is_file():
            kept = store_of(option)
            book = StoreRunIndex(kept).view(whole_id(kept, source))
        elif Path(source).is_file():
            book = read_file(Path(source), Path(source).stem)
        else:
            raise CommandError(f"there is no store here, and no file `{source}`; say which store by `--store`")
    if book is None:
        raise CommandError(f"`{source}` is the run of a branch; show the run that began it")
    try:
        Path(out).write_bytes(single_page(book, PageRedactor()))
    except OSError as error:
        raise CommandError(f"`{out}` cannot be written: {error.strerror or error}") from error
    write_line(f"written: {one_line(out)}")
    return FINE


def _print_python(run: Run, store: Store | None) -> int:
    """The run as a test; a store knows where the class is, and what the instance had set."""
    module, settings = None, JsonObject()
    if store is not None:
        with as_usage_error():
            stored = store.read(run.id)[0]
        module, settings = stored.header.agent, stored_settings(stored)
    text = as_python(run, module=module, settings=settings, hide=without_keys)
    write(sys.stdout, clean(text) if sys.stdout.isatty() else text)
    return FINE


def draw_kept(store: Store, run: Run, *, is_whole: bool, out: TextIO) -> None:
    """A run of a store as a tree, and what it came to."""
    with as_usage_error():
        status, heard = store.follow(run.id)
    entries = read_stored_entries(each.entry for each in heard)
    head = Text.assemble((one_line(run.id), "bold"), (f"  {status}{_origin(run.forked_from)}", "dim"))
    _draw(head, entries, out, is_whole=is_whole)
    totals = totals_text(run.steps, run.usage.total_tokens, run.cost, run.seconds)
    write(out, f"{one_line(run.model or 'no model yet')} · {totals}\n")


def _origin(fork: ForkedFrom | None) -> str:
    """What a run was forked from, for its heading."""
    return "" if fork is None else f", forked from {one_line(short(fork.run or 'events'))} before step {fork.before}"


def _follow(store: Store, run_id: str) -> int:
    with as_usage_error():
        facts = store.read(run_id)[0].facts
        view = PlainView(facts.agent, facts.model or "no model yet", say=lambda line: write(sys.stdout, f"{line}\n"))
        with view:
            for entry in acorn.runs(store).follow(run_id):
                view.hear(entry)
        run = acorn.runs(store).get(run_id)
        facts = store.read(run_id)[0].facts
    view.end(facts.status, run)
    return FINE


def read_kept(file: str) -> tuple[list[AgentEvent], Run | None]:
    """The events in a file, and the record where it holds one."""
    try:
        text = Path(file).read_bytes()
        if text.lstrip().startswith(b"{"):  # a record; events are a list
            run = Run.from_json(text.decode())
            return run.thread, run
        return parse_events(text), None
    except StoreError as error:
        raise CommandError(f"`{file}` holds no saved run: {error}") from error
    except OSError as error:
        raise CommandError(f"`{file}` cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"])
        raise CommandError(f"`{file}` holds no saved run: {f'{path}: ' if path else ''}{first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise CommandError(f"`{file}` holds no saved run: {error}") from error


def _print_run(title: str, events: list[AgentEvent], fork: ForkedFrom | None) -> None:
    head = Text.assemble((one_line(title), "bold"), (f"  {plural(len(events), 'event')}{_origin(fork)}", "dim"))
    _draw(head, thread_entries(events), sys.stdout, is_whole=True)


def _draw(head: Text, entries: Iterable[Entry], out: TextIO, *, is_whole: bool) -> None:
    console = Console(file=out)
    if not out.isatty():
        console = Console(file=out, width=160)
    drawn, tree = Tree(head, guide_style="dim"), RunTree()
    for entry in entries:
        tree.hear(entry)
    pen = Pen(0.0, console.width, console.options.ascii_only, is_over=True, is_whole=is_whole)
    draw(tree.root, drawn, pen)
    with console.capture() as captured:
        console.print(drawn)
    write(out, captured.get())
