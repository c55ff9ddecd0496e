"""The tables of a store in SQLite, as the steps that lead from one version to the next. Forward only.

A step that was released never changes: files that it made are out there.
"""

from __future__ import annotations

APPLICATION_ID = 0x41434F52
"""How a file says that it is a store of acorn."""

Migration = tuple[str, ...]
"""Statements that run in one transaction."""

FIRST: Migration = (
    # A process that drives runs; `heard` and `until` are seconds since 1970, as all times here.
    """
    CREATE TABLE holders (
      id TEXT PRIMARY KEY, host TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER NOT NULL, born TEXT NOT NULL,
      heard REAL NOT NULL, until REAL NOT NULL
    ) WITHOUT ROWID
    """,
    # What a list shows of a run, and who drives it. `root` is the number of the run that a branch belongs to, and
    # null for a run of its own: only that one has a holder. `length` counts the entries of its journal, `asks` the
    # open requests of the whole tree. `attempts` counts holders that died while the tree had made `attempted` steps.
    """
    CREATE TABLE runs (
      number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, root INTEGER, parent TEXT, agent TEXT NOT NULL,
      status TEXT NOT NULL, model TEXT, steps INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
      output_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL,
      requests INTEGER NOT NULL, cost REAL, started REAL NOT NULL, updated REAL NOT NULL, seconds REAL NOT NULL,
      batch TEXT, item INTEGER, stop_reason TEXT, error TEXT, length INTEGER NOT NULL,
      holder TEXT, silence REAL NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0,
      attempted INTEGER NOT NULL DEFAULT -1, is_unwanted INTEGER NOT NULL DEFAULT 0, asks INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE INDEX runs_by_time ON runs (started DESC, number DESC) WHERE root IS NULL",
    "CREATE INDEX runs_by_batch ON runs (batch, item) WHERE batch IS NOT NULL",
    "CREATE INDEX runs_by_root ON runs (root) WHERE root IS NOT NULL",
    "CREATE INDEX runs_by_holder ON runs (holder) WHERE holder IS NOT NULL",
    # What never changes of a run, and what changes with each commit: JSON that only acorn reads.
    "CREATE TABLE births (run INTEGER PRIMARY KEY, branch TEXT, input TEXT NOT NULL, overrides TEXT)",
    "CREATE TABLE states (run INTEGER PRIMARY KEY, record TEXT NOT NULL, state TEXT NOT NULL)",
    # The journals, in the order of the commits. A position is never given twice: where the last ones are deleted, one
    # of root 0 keeps their place. AUTOINCREMENT would write one page more with each commit.
    """
    CREATE TABLE entries (
      position INTEGER PRIMARY KEY, root INTEGER NOT NULL, run INTEGER NOT NULL, entry TEXT NOT NULL
    )
    """,
    "CREATE INDEX entries_by_root ON entries (root)",
    # What people are asked, and what they answered; `turn` is the order of the answers of a tree.
    """
    CREATE TABLE requests (
      number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, root INTEGER NOT NULL, run TEXT NOT NULL,
      kind TEXT NOT NULL, question TEXT NOT NULL, tool TEXT NOT NULL, arguments TEXT NOT NULL, branch TEXT,
      choices TEXT, asked REAL NOT NULL, answer TEXT, answered REAL, turn INTEGER
    )
    """,
    "CREATE INDEX requests_by_root ON requests (root)",
    "CREATE INDEX requests_open ON requests (asked, number) WHERE answered IS NULL",
)

SECOND: Migration = (
    "ALTER TABLE runs ADD COLUMN cache_write_tokens INTEGER NOT NULL DEFAULT 0",
    # The data of pictures and files, each once, and which trees have it.
    "CREATE TABLE media (number INTEGER PRIMARY KEY, sha256 TEXT NOT NULL UNIQUE, data BLOB NOT NULL)",
    """
    CREATE TABLE media_of_runs (
      root INTEGER NOT NULL, medium INTEGER NOT NULL, PRIMARY KEY (root, medium)
    ) WITHOUT ROWID
    """,
    "CREATE INDEX media_by_medium ON media_of_runs (medium)",
)

MIGRATIONS: tuple[Migration, ...] = (FIRST, SECOND)
"""The first makes version 1 of nothing, the next version 2 of that."""
