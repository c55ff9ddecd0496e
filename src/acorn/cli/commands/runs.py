"""`acorn runs`, `answer`, `cancel` and `delete`: the runs of a store at a glance, and what can be done to them."""

from __future__ import annotations

import sys
from dataclasses import fields
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import acorn
from acorn.cli.commands.fleet import show_fleet
from acorn.cli.exit import FINE, CommandError, print_json, write, write_line
from acorn.cli.safe_text import one_line, plural, seconds_text
from acorn.cli.stored import STORE_HELP, short, store_of, told, value_of, whole_id
from acorn.stores.port import RunFacts
from acorn.types import Request

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
    with told():
        listed = kept.list(status=tuple(status or ()), agent=agent, limit=limit)  # type: ignore[arg-type]
        requests = kept.requests()
    if json:
        print_json([_plain(facts) for facts in listed], sys.stdout)
        return FINE
    if not listed:
        write_line(f"no runs in {book.name}")
        return FINE
    _print(listed)
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
    with told():
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
    with told():
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
    with told():
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


def _plain(facts: RunFacts) -> dict[str, Any]:
    plain = {each.name: getattr(facts, each.name) for each in fields(facts)}
    usage = {name: getattr(facts.usage, name) for name in facts.usage.__slots__}
    return {**plain, "usage": usage, "started": facts.started.isoformat(), "updated": facts.updated.isoformat()}


def _print(listed: Any) -> None:
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
