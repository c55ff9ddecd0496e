"""`acorn show`: a run that was kept, in a store or in a file, step by step."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.text import Text
from rich.tree import Tree

import acorn
from acorn import Run
from acorn._data import described, without_data
from acorn._record_json import read_entries
from acorn.cli.commands.runs import StoreOption
from acorn.cli.exit import FINE, CommandError, print_json, without_keys, write, write_line
from acorn.cli.safe_text import clean, one_line, plural, totals_text
from acorn.cli.stored import named_store, short, store_of, told, whole_id
from acorn.cli.view.drawing import Pen, draw
from acorn.cli.view.tree import RunTree
from acorn.cli.view.views import PlainView
from acorn.errors import StoreError
from acorn.journal import Entry
from acorn.stores.port import Store
from acorn.testing.as_python import as_python
from acorn.thread import AgentEvent, dump_events, parse_events, serialize_thread_to_xml
from acorn.thread.retold import entries_of
from acorn.types import ForkedFrom


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
    run: Run[Any] | None
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
        with told():
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
        print_json(described(dump_events(events)), sys.stdout)
    elif xml:
        text = serialize_thread_to_xml(events)
        write(sys.stdout, f"{clean(text) if sys.stdout.isatty() else text}\n")
    else:
        _print(Path(file).name, events, None if run is None else run.forked_from)
    return FINE


def _write_html(source: str, option: str | None, out: str) -> int:
    from acorn.web.saved import read_file
    from acorn.web.shelf import StoreShelf
    from acorn.web.single import single_page
    from acorn.web.wire import Veil

    with told():
        if named_store(option) is not None and not Path(source).is_file():
            kept = store_of(option)
            book = StoreShelf(kept).book(whole_id(kept, source))
        elif Path(source).is_file():
            book = read_file(Path(source), Path(source).stem)
        else:
            raise CommandError(f"there is no store here, and no file `{source}`; say which store by `--store`")
    if book is None:
        raise CommandError(f"`{source}` is the run of a branch; show the run that began it")
    try:
        Path(out).write_bytes(single_page(book, Veil()))
    except OSError as error:
        raise CommandError(f"`{out}` cannot be written: {error.strerror or error}") from error
    write_line(f"written: {one_line(out)}")
    return FINE


def _print_python(run: Run[Any], store: Store | None) -> int:
    """The run as a test; a store knows where the class is, and what the instance had set."""
    module, settings = None, dict[str, Any]()
    if store is not None:
        with told():
            birth = store.read(run.id)[0].birth
        module = birth.agent
        settings = json.loads(birth.overrides).get("settings", {}) if birth.overrides else {}
    text = as_python(run, module=module, settings=settings, hide=without_keys)
    write(sys.stdout, clean(text) if sys.stdout.isatty() else text)
    return FINE


def draw_kept(store: Store, run: Run[Any], *, is_whole: bool, out: TextIO) -> None:
    """A run of a store as a tree, and what it came to."""
    with told():
        status, heard = store.follow(run.id)
    entries = read_entries([without_data(each.entry) for each in heard])
    head = Text.assemble((one_line(run.id), "bold"), (f"  {status}{_origin(run.forked_from)}", "dim"))
    _draw(head, entries, out, is_whole=is_whole)
    totals = totals_text(run.steps, run.usage.total_tokens, run.cost, run.seconds)
    write(out, f"{one_line(run.model or 'no model yet')} · {totals}\n")


def _origin(fork: ForkedFrom | None) -> str:
    """What a run was forked from, for its heading."""
    return "" if fork is None else f", forked from {one_line(short(fork.run or 'events'))} before step {fork.before}"


def _follow(store: Store, run_id: str) -> int:
    with told():
        facts = store.read(run_id)[0].facts
        view = PlainView(facts.agent, facts.model or "no model yet", say=lambda line: write(sys.stdout, f"{line}\n"))
        with view:
            for entry in acorn.runs(store).follow(run_id):
                view.hear(entry)
        run = acorn.runs(store).get(run_id)
        facts = store.read(run_id)[0].facts
    view.end(facts.status, run)
    return FINE


def read_kept(file: str) -> tuple[list[AgentEvent], Run[Any] | None]:
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


def _print(title: str, events: list[AgentEvent], fork: ForkedFrom | None) -> None:
    head = Text.assemble((one_line(title), "bold"), (f"  {plural(len(events), 'event')}{_origin(fork)}", "dim"))
    _draw(head, entries_of(events), sys.stdout, is_whole=True)


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
