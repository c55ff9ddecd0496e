"""`acorn runs --fleet`: the workers of a PostgreSQL store at a glance, and what they have to do."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from acorn.cli.exit import FINE, CommandError, print_json, write, write_line
from acorn.cli.safe_text import one_line, plural, seconds_text
from acorn.cli.stored import told
from acorn.stores.port import Store


def show_fleet(book: Store, *, json: bool) -> int:
    look: Any = getattr(book, "fleet", None)
    if look is None:
        raise CommandError(f"`--fleet` is for a PostgreSQL store, and {book.name} is none; it has no workers")
    with told():
        workers, agents = look()
    if json:
        shown = [{**each._asdict(), "since": each.since.isoformat()} for each in workers]
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
    since = each.since.astimezone().strftime("%Y-%m-%d %H:%M")
    return [
        f"{one_line(each.host, 40)} {each.pid}",
        f"{each.running:,}",
        f"{each.places:,}",
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
