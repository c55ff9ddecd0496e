"""Data analyst: an agent that answers questions about a SQLite database and cannot change the database.

    python examples/analyst.py
    acorn run examples/analyst.py --database shop.db --question "Who bought most?"

A model may generate any query, so the database connection must protect the data. The program opens the file read-only
and sets `query_only`. An authorizer allows only operations that read data. It denies all other operations, such as
`ATTACH`, `PRAGMA`, loading extensions and saving a copy. The number of rows, the length of a value and the time of a
query are limited as well.

The first command needs no API key and no network, because it uses a scripted model.
"""

import sqlite3
import tempfile
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, FilePath

from acorn import Run, module, tool
from acorn.testing import ScriptedModel, call, finish
from acorn.thread import ToolCallEvent

MOST_ROWS, MOST_CHARACTERS, MOST_BYTES, MOST_SECONDS = 50, 20_000, 100_000, 5.0
READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
# `printf` and `format` can need minutes for one value, and SQLite cannot interrupt them.
DENIED_FUNCTIONS = {"load_extension", "printf", "format"}


class Question(BaseModel):
    question: str
    database: FilePath = Field(description="A SQLite file")


class Finding(BaseModel):
    answer: str
    query: str = Field(description="The query that shows it")


def authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    """Allow or deny one operation of a statement."""
    is_function = action == sqlite3.SQLITE_FUNCTION and second not in DENIED_FUNCTIONS
    return sqlite3.SQLITE_OK if action in READING or is_function else sqlite3.SQLITE_DENY


@contextmanager
def open_database(run: Run) -> Generator[sqlite3.Connection]:
    """Open a read-only connection whose queries stop after a few seconds."""
    assert isinstance(run.input, Question)
    file = run.input.database.resolve().as_uri()
    with closing(sqlite3.connect(f"{file}?mode=ro", uri=True)) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        end = time.monotonic() + MOST_SECONDS
        connection.set_progress_handler(lambda: time.monotonic() > end, 10_000)
        connection.set_authorizer(authorize)
        yield connection


@tool
def tables(run: Run) -> list[str]:
    """The tables, as they were made."""
    with open_database(run) as connection:
        return [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE type IN ('table', 'view')")]


@tool
def query(run: Run, sql: str) -> dict[str, Any]:
    """Ask the database.

    Args:
        sql: One SELECT
    """
    with open_database(run) as connection:
        cursor = connection.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        rows: list[tuple[Any, ...]] = []
        length, more = sum(map(len, names)), False
        for row in cursor:
            length += sum(len(str(value)) for value in row)
            if more := len(rows) == MOST_ROWS or length > MOST_CHARACTERS:
                break
            rows.append(row)
    if more and not rows:
        raise ValueError(f"a row is longer than {MOST_CHARACTERS} characters; ask for a part: substr(text, 1, 1000)")
    return {"columns": names, "rows": rows, "more": more}


class Analyst(module[Question, Finding]):
    """Answer the question with the database. Look at the tables before you ask."""

    model = "openai/gpt-4o"
    temperature = 0
    max_steps = 10
    tools = [tables, query]


BEST = "SELECT customer, SUM(amount) FROM orders GROUP BY customer ORDER BY 2 DESC LIMIT 1"


def script() -> ScriptedModel:
    """Return a model with scripted answers, which also tries to delete data."""
    return ScriptedModel(
        [
            call("tables"),
            call("query", sql="DELETE FROM orders") & call("query", sql=BEST),
            finish(answer="Anna, with 42.", query=BEST),
        ]
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shop.db"
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE orders (customer TEXT, amount INTEGER)")
            connection.executemany("INSERT INTO orders VALUES (?, ?)", [("Anna", 30), ("Bert", 20), ("Anna", 12)])
            connection.commit()
        run = Analyst(model=script()).run(question="Who bought most?", database=file)
    read = {message.get("tool_call_id"): message["content"] for message in run.history if message["role"] == "tool"}
    for event in run.thread:
        if isinstance(event, ToolCallEvent) and event.tool_name != "__finish__":
            print(f"{event.tool_name}: {event.args.get('sql', '')}\n    {read[event.tool_call_id]}")
    assert run.output is not None
    print(f"\n{run.output.answer} The query was:\n    {run.output.query}")


if __name__ == "__main__":
    main()
