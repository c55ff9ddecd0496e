"""The rules of a store, written once for all databases: claim, commit, release, answer, cancel, delete and requeue.

Each method of `DatabaseStore` executes one transaction. The statements are in `statements.py`, and those that differ
between databases are in the folder of each database. A transaction that writes to a run first locks the table row of
its root run until the transaction ends. This fixed order prevents deadlocks.
"""

from __future__ import annotations

import json
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from acorn.errors import StoreError
from acorn.stores import port
from acorn.stores import statements as sql
from acorn.stores.group_commit import Closable, GroupCommitWriter, KeepWrites
from acorn.stores.lease import lease_seconds
from acorn.stores.statements import ProcessRow, RootRow, RunRow, Transaction
from acorn.types import Request

MAX_TAKEOVERS = 5
"""The number of processes that die at the same step of a run before the run fails."""

D = TypeVar("D", bound="DatabaseStore")
P = ParamSpec("P")
T = TypeVar("T")


def in_transaction(rule: Callable[Concatenate[D, Transaction, P], T]) -> Callable[Concatenate[D, P], T]:
    """Make a method of a store that executes its body in a transaction, which may also contain other writes.

    If the method raises `StoreError`, only its own writes are undone.
    """

    @wraps(rule)
    def method(self: D, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self.transact(lambda transaction: rule(self, transaction, *arguments, **options))

    return method


def in_snapshot(rule: Callable[Concatenate[D, Transaction, P], T]) -> Callable[Concatenate[D, P], T]:
    """Make a method of a store that executes its body in a read transaction.

    All statements of the method see the same snapshot of the database.
    """

    @wraps(rule)
    def method(self: D, /, *arguments: P.args, **options: P.kwargs) -> T:
        return self.read_transaction(lambda transaction: rule(self, transaction, *arguments, **options))

    return method


class DatabaseStore(ABC):
    """A store in a database."""

    def __init__(self, name: str, writer: GroupCommitWriter[Any], *parts: Closable) -> None:
        """Initialize the store.

        `parts` are all objects that `close` closes, including the writer, in this order.
        """
        self._name, self._writer, self._parts = name, writer, parts
        self._has_cleaned_up = False
        # Also closes the store at the end of the program, and when no reference to the store is left.
        weakref.finalize(self, _close_unused, parts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    @property
    def name(self) -> str:
        return self._name

    def transact(self, operation: Callable[[Transaction], T]) -> T:
        """Call a function in a transaction that may also contain other writes, and return the result of the function.

        If the function raises `StoreError`, only its own writes are undone. If it raises `KeepWrites`, they are stored.
        """
        return self._writer.submit(operation).result()

    @abstractmethod
    def read_transaction(self, operation: Callable[[Transaction], T]) -> T:
        """Call a function in a read transaction and return the result of the function."""

    @abstractmethod
    def _prepare_delivery(self) -> None:
        """Prepare the database for the delivery of runs to workers. Raise `StoreError` if it has no workers."""

    def close(self) -> None:
        _close(self._parts)

    # Called by the process that drives a run

    def commit(self, commit: port.Commit) -> port.PendingCommit:
        return self._writer.submit(
            lambda transaction: self._commit(transaction, commit), commit if is_simple(commit) else None
        )

    def _commit(self, transaction: Transaction, commit: port.Commit) -> None:
        of_root = next((change for change in commit.changes if change.run_id == commit.root), None)
        is_new, branches = of_root is not None and of_root.header is not None, _branches_of_commit(commit)
        # Send both statements before the first result is read.
        locked = _send_lock(transaction, commit.root)
        known = transaction.execute(sql.KNOWN_RUNS, [branches]) if branches else None
        root = _to_run(locked.fetchone())
        if not is_new:
            root = self._check_claim(transaction, commit, root)
        elif root is not None:
            status, driver = _status_and_driver(transaction, commit.root, root)
            raise driver or StoreError(
                f"Run {commit.root} is already in {self._name} (status `{status}`). Resume the run, or use another id."
            )
        known_runs = {} if root is None else {commit.root: (commit.root, root.entry_count)}
        if known is not None:
            known_runs |= {run_id: (top, entry_count) for run_id, top, entry_count in known.fetchall()}
        _check_commit(commit, known_runs, self._name)
        if is_new:
            self._set_lease(transaction, commit.process, lease_seconds())
        if root is not None:
            _notify_watchers(transaction, root)
        is_cancelled = root is not None and root.cancel_requested
        # After a cancel request, any other commit is stored and raises `RunCancelledError`.
        is_end = of_root is not None and of_root.status in ("done", "failed", "cancelled", "stopped")
        needs_worker = False
        if of_root is not None and root is not None and root.is_delivered and not is_cancelled:
            # Users may have answered some of the requests after the process had read the answers.
            requests = [request.id for request in commit.requests] if of_root.status == "waiting" else []
            is_answered = bool(requests) and transaction.execute(sql.HAS_ANSWER, [requests]).fetchone() is not None
            needs_worker = of_root.status == "queued" or is_answered
        for change in commit.changes:
            status, process = change.status, None
            if change.run_id == commit.root:
                if is_cancelled:  # The process keeps its claim until it has stored the end of the run.
                    status = status_after_cancel(status) if is_end else "running"
                elif needs_worker:
                    status = "queued"
                process = commit.process.id if status == "running" else None
            if change.header is None:
                values = (*_values(change, status), change.run_id, process)
                transaction.store_run(sql.UPDATE_RUN, values, change, None)
            else:
                insert_run(transaction, change, change.header, commit.root, status, process)
        if commit.media:
            _store_media(transaction, [(blob, commit.root) for blob in commit.media])
        if of_root is None:
            transaction.execute(sql.TOUCH_RUN, [commit.root])
        if commit.requests or (root is not None and root.open_requests):
            _set_open_requests(transaction, commit.root, () if is_cancelled else commit.requests)
        if needs_worker:
            transaction.execute(sql.ADD_JOBS, [[commit.root]])
        if is_cancelled and not is_end:
            raise KeepWrites(port.run_cancelled_error(commit.root))

    def _check_claim(self, transaction: Transaction, commit: port.Commit, root: RunRow | None) -> RunRow:
        """Check that a commit may write to its root run, and return the row of the root run.

        Raise `StoreError` if the process of the commit no longer drives the root run, or if it was deleted.
        """
        if root is None:
            raise StoreError(
                f"Run {commit.root} is no longer in {self._name}. This process writes nothing more to the run."
            )
        if root.process != commit.process.id:
            new = _read_process(transaction, root.process)
            reason = f"is no longer driven by this process (its status is `{root.status}`)"
            if new is not None:
                reason = (
                    f"was taken over by process {new.process.pid} on {new.process.host}, because this process sent no "
                    f"heartbeat for {root.heartbeat_age:.0f} s"
                )
            raise StoreError(f"Run {commit.root} {reason}. This process writes nothing more to the run.")
        return root

    @in_transaction
    def claim(self, transaction: Transaction, run_id: str, process: port.Process) -> Sequence[port.StoredRun] | None:
        run = lock_run(transaction, run_id)
        if run is None:
            return None
        _refuse_branch(transaction, run_id, run)
        status, driver = _status_and_driver(transaction, run_id, run)
        if driver is not None:
            raise driver
        tree = _read_tree(transaction, run_id)
        if status in port.FINAL_STATUSES:
            return tree
        heartbeat_age = 0.0
        if run.status == "running":
            steps = sum(member.facts.steps for member in tree)
            takeovers = run.takeovers + 1 if run.takeover_steps == steps else 1
            transaction.execute(sql.SET_TAKEOVERS, [takeovers, steps, run.number])
            if takeovers >= MAX_TAKEOVERS:
                error = (
                    f"Run {run_id} failed: five processes died while they executed this step. Check the step before "
                    f"you resume the run."
                )
                set_status(transaction, run_id, run, "failed", error)
                raise KeepWrites(StoreError(error))
            previous = _read_process(transaction, run.process)
            heartbeat_age = previous.heartbeat_age if previous is not None else 0.0
        self._set_lease(transaction, process, lease_seconds())
        transaction.execute(sql.SET_CLAIM, [process.id, heartbeat_age, run.number])
        _notify_watchers(transaction, run)
        return tree

    @in_transaction
    def release(self, transaction: Transaction, run_id: str, process: port.Process, status: port.Status) -> None:
        run = lock_run(transaction, run_id)
        if run is None or run.process != process.id:
            return
        if run.cancel_requested:
            status = status_after_cancel(status)
        # Users may have answered all requests while the process had its claim.
        is_answered = status == "waiting" and run.is_delivered and run.open_requests == 0
        if is_answered:
            status = "queued"
        set_status(transaction, run_id, run, status, None if status == "queued" else run.error)
        # A failed run that is tried again, and a run whose requests are answered, need a new job. Any other run returns
        # to the queue without progress. If its delivery has deleted its job, `requeue_lost` adds a job after a lease,
        # because an immediate delivery could fail again immediately.
        if status == "queued" and run.is_delivered and (is_answered or run.error is not None):
            transaction.execute(sql.ADD_JOBS, [[run_id]])

    @in_snapshot
    def answers(self, transaction: Transaction, run_id: str) -> Sequence[port.StoredAnswer]:
        return [sql.to_answer(row) for row in transaction.execute(sql.ANSWERS, [run_id]).fetchall()]

    def _set_lease(self, transaction: Transaction, process: port.Process, seconds: float) -> None:
        """Store the heartbeat of a process and extend its lease by some seconds."""
        if not self._has_cleaned_up:
            self._has_cleaned_up = True
            for statement in transaction.idle_rows:
                transaction.execute(statement)
        values = (process.id, process.host, process.boot, process.pid, process.started, float(seconds))
        transaction.execute(sql.SET_LEASE, values)

    @in_transaction
    def renew_lease(self, transaction: Transaction, process: port.Process, seconds: float) -> Sequence[str]:
        self._set_lease(transaction, process, seconds)
        return [run_id for (run_id,) in transaction.execute(sql.CANCEL_REQUESTED, [process.id]).fetchall()]

    # Called by processes that submit runs for other processes

    def enqueue(self, runs: Sequence[port.QueuedRun], *, deliver: bool = False) -> Sequence[str]:
        if deliver:
            self._prepare_delivery()

        def insert(transaction: Transaction) -> Sequence[str]:
            # Of several runs with the same id, insert only the first run.
            unique = list({run.run_id: run for run in reversed(runs)}.values())[::-1]
            new = set(transaction.insert_queued(unique, deliver)) if unique else ()
            _store_media(transaction, [(blob, run.run_id) for run in unique if run.run_id in new for blob in run.media])
            return [run.run_id for run in unique if run.run_id in new]

        return self.transact(insert)

    @in_snapshot
    def statuses(self, transaction: Transaction, run_ids: Sequence[str]) -> Mapping[str, port.Status]:
        live = _live_processes(transaction)
        rows = transaction.execute(sql.STATUSES, [[*run_ids]]).fetchall()
        return {
            run_id: visible_status(status, cancel_requested, process in live)
            for run_id, status, cancel_requested, process in rows
        }

    # Called by processes that inspect runs

    @in_snapshot
    def read(self, transaction: Transaction, run_id: str) -> Sequence[port.StoredRun]:
        return _read_tree(transaction, run_id)

    @in_snapshot
    def media(self, transaction: Transaction, wanted: Sequence[str]) -> Mapping[str, bytes]:
        return dict(transaction.execute(sql.MEDIA, [[*wanted]]).fetchall())

    @in_snapshot
    def find(self, transaction: Transaction, prefix: str) -> Sequence[str]:
        rows = transaction.execute(sql.FIND, [prefix, f"{prefix}\U0010ffff"]).fetchall()
        ids = [run_id for (run_id,) in rows]
        return [prefix] if prefix in ids else ids

    @in_snapshot
    def list(
        self,
        transaction: Transaction,
        *,
        status: Sequence[port.Status] = (),
        agent: str | None = None,
        batch: str | None = None,
        before: datetime | None = None,
        limit: int | None = 50,
    ) -> Sequence[port.RunFacts]:
        values: list[Any] = [_live_processes(transaction)]
        conditions = ["true"]

        def add(condition: str, value: object) -> None:
            values.append(value)
            conditions.append(condition.replace("$", f"${len(values)}"))

        if status:
            add("visible_status = ANY($::text[])", [*status])
        if agent is not None:
            add(sql.HAS_AGENT, agent)
        if batch is not None:
            add("batch = $", batch)
        if before is not None:
            add("started < to_timestamp($)", before.timestamp())
        text = f"{sql.LIST} WHERE {' AND '.join(conditions)} ORDER BY started DESC, number DESC"
        if limit is not None:
            values.append(max(limit, 0))
            text += f" LIMIT ${len(values)}"
        rows = transaction.execute(text, values).fetchall()
        return [sql.run_facts(tuple(row), row[0], visible) for *row, visible in rows]

    @in_snapshot
    def search(self, transaction: Transaction, run_ids: Sequence[str], text: str) -> Sequence[str]:
        rows = transaction.execute(sql.SEARCH, [[*run_ids], sql.like_pattern(text)]).fetchall()
        return [run_id for (run_id,) in rows]

    @in_snapshot
    def follow(
        self, transaction: Transaction, run_id: str, after: int = 0
    ) -> tuple[port.Status | None, Sequence[port.JournalRow]]:
        root = _read_root(transaction, run_id)
        if root is None:
            return None, []
        rows = transaction.execute(sql.JOURNAL, [root.number, after]).fetchall()
        numbers = _run_and_below(transaction, run_id, root)
        entries = [
            port.JournalRow(position, entry) for run, position, entry in rows if numbers is None or run in numbers
        ]
        return visible_status(root.run_status, root.cancel_requested, root.is_driven), entries

    @in_snapshot
    def requests(self, transaction: Transaction, run_id: str | None = None) -> Sequence[Request]:
        statement, values = (sql.OPEN_REQUESTS, []) if run_id is None else (sql.TREE_REQUESTS, [run_id])
        return [sql.to_request(row) for row in transaction.execute(statement, values).fetchall()]

    @in_transaction
    def answer(self, transaction: Transaction, request_id: str, value: Any) -> Request:
        try:
            text = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(
                f"The answer to request {request_id} cannot be stored as JSON ({error}). Use only JSON data."
            ) from error
        of_request = "WHERE number = (SELECT root FROM requests WHERE id = $1) FOR UPDATE"
        locked = transaction.execute(f"{sql.SELECT_RUN} {of_request}", [request_id])
        row = transaction.execute(sql.READ_REQUEST, [request_id]).fetchone()
        root = _to_run(locked.fetchone())
        if row is None or root is None:
            raise StoreError(
                f"Request {request_id!r} is not open in {self._name}. Its run may have withdrawn the request. "
                f"`acorn runs --store {self._name}` lists the open requests."
            )
        *request_row, answered = row
        if answered is not None:
            at = sql.to_datetime(answered).astimezone(UTC)
            raise StoreError(
                f"Request {request_id} was already answered at {at:%Y-%m-%d %H:%M} UTC. "
                f"Resume its run without an answer."
            )
        transaction.execute(sql.SET_ANSWER, [text, root.number, request_id])
        # A worker continues a delivered run after the first answer.
        status = "queued" if root.is_delivered and root.status == "waiting" else root.status
        (run_id,) = transaction.execute(sql.COUNT_ANSWER, [status, root.number]).fetchone()
        if root.is_delivered and status == "queued":
            transaction.execute(sql.ADD_JOBS, [[run_id]])
        return sql.to_request(tuple(request_row))

    @in_transaction
    def cancel(self, transaction: Transaction, run_id: str) -> None:
        run = self._lock_root(transaction, run_id)
        status, driver = _status_and_driver(transaction, run_id, run)
        if status == "done":
            raise StoreError(f"Cannot cancel run {run_id}: it is already finished (status `{status}`).")
        if driver is None:
            set_status(transaction, run_id, run, "cancelled", run.error)
        else:
            transaction.execute(sql.REQUEST_CANCEL, [run.number])
            transaction.notify(sql.CANCEL_CHANNEL, str(run.process))

    @in_transaction
    def delete(self, transaction: Transaction, run_id: str) -> None:
        run = self._lock_root(transaction, run_id)
        _, driver = _status_and_driver(transaction, run_id, run)
        if driver is not None:
            raise driver
        transaction.delete_entries(run.number)
        for statement in sql.DELETE_RUN:
            transaction.execute(statement, [run.number])
        _notify_watchers(transaction, run)

    def _lock_root(self, transaction: Transaction, run_id: str) -> RunRow:
        run = lock_run(transaction, run_id)
        if run is None:
            raise port.run_not_found_error(run_id, self._name)
        _refuse_branch(transaction, run_id, run)
        return run


def _close_unused(parts: Sequence[Closable]) -> None:
    """Close the parts of a store that is not used any more.

    The garbage collector can call this function inside any other code, also while that code has one of the locks that
    `close` waits for. Therefore a new thread closes the parts, except at the end of the program.
    """
    if threading.main_thread().is_alive():
        threading.Thread(target=_close, args=(parts,), name="acorn-store-close").start()
    else:
        _close(parts)


def _close(parts: Sequence[Closable]) -> None:
    for part in parts:
        part.close()


# Runs and processes


def _send_lock(transaction: Transaction, run_id: str) -> sql.Cursor:
    return transaction.execute(f"{sql.SELECT_RUN} WHERE id = $1 FOR UPDATE", [run_id])


def _to_run(row: sql.Row | None) -> RunRow | None:
    return None if row is None else RunRow(*row)


def lock_run(transaction: Transaction, run_id: str) -> RunRow | None:
    """Lock the table row of a run until the end of the transaction, and return the row.

    Return None if the run does not exist.
    """
    return _to_run(_send_lock(transaction, run_id).fetchone())


def _read_process(transaction: Transaction, process_id: str | None) -> ProcessRow | None:
    row = transaction.execute(sql.PROCESS, [process_id]).fetchone() if process_id else None
    return None if row is None else sql.to_process(row)


def _live_processes(transaction: Transaction) -> list[str]:
    """Return the ids of all live processes that drive runs."""
    driving = [sql.to_process(row) for row in transaction.execute(sql.DRIVING_PROCESSES).fetchall()]
    return [row.process.id for row in driving if row is not None and row.is_alive()]


def _status_and_driver(transaction: Transaction, run_id: str, run: RunRow) -> tuple[port.Status, StoreError | None]:
    """Return the reported status of a run and an error.

    The error is a `RunClaimedError` if a live process drives the run, and None otherwise.
    """
    driver = _read_process(transaction, run.process) if run.status == "running" else None
    is_driven = driver is not None and driver.is_alive()
    status = visible_status(run.status, run.cancel_requested, is_driven)
    if driver is None or not is_driven:
        return status, None
    return status, port.run_claimed_error(run_id, driver.process, driver.heartbeat_age)


def _refuse_branch(transaction: Transaction, run_id: str, run: RunRow) -> None:
    """Raise `StoreError` if a run is a branch, because only root runs can be claimed, cancelled and deleted."""
    if run.root is not None:
        (root,) = transaction.execute(sql.RUN_ID, [run.root]).fetchone()
        raise StoreError(f"Run {run_id} is a branch of run {root}. Use the id of run {root}.")


def set_status(transaction: Transaction, run_id: str, run: RunRow, status: port.Status, error: str | None) -> None:
    """Set the status and the error of a root run, and remove the claim of its process."""
    transaction.execute(sql.SET_STATUS, [status, error, run.number])
    if status == "cancelled":
        _set_open_requests(transaction, run_id, ())
    _notify_watchers(transaction, run)


def _notify_watchers(transaction: Transaction, root: RunRow) -> None:
    """Send a notification that a root run or one of its branches changed, if a process watches the root run."""
    if root.is_watched:
        transaction.notify(sql.CHANGE_CHANNEL, str(root.number))


def _set_open_requests(transaction: Transaction, root: str, requests: Sequence[Request]) -> None:
    """Replace the unanswered requests for human input of a root run and its branches.

    Answered requests remain unchanged.
    """
    transaction.execute(sql.WITHDRAW_REQUESTS, [root, [request.id for request in requests]])
    for request in requests:
        choices = None if request.choices is None else json.dumps(request.choices)
        values = (
            root, request.id, request.run_id, request.kind, request.question, request.tool,
            json.dumps(request.arguments), request.branch, choices, request.asked.timestamp(),
        )  # fmt: skip
        transaction.execute(sql.INSERT_REQUEST, values)
    transaction.execute(sql.COUNT_REQUESTS, [root])


def _store_media(transaction: Transaction, media: Sequence[tuple[port.MediaBlob, str]]) -> None:
    """Store the media of root runs. Each item is the data and the id of the root run."""
    for (sha256, data), run_id in sorted(media):  # Lock rows in a fixed order to prevent deadlocks.
        transaction.execute(sql.INSERT_MEDIA, [sha256, data])
        transaction.execute(sql.ADD_MEDIA_TO_RUN, [run_id, sha256])


# Trees


def _read_root(transaction: Transaction, run_id: str) -> RootRow | None:
    row = transaction.execute(sql.ROOT, [run_id]).fetchone()
    if row is None:
        return None
    process = sql.to_process(row[5:])
    return RootRow._make([*row[:5], process is not None and process.is_alive()])


def _read_tree(transaction: Transaction, run_id: str) -> list[port.StoredRun]:
    """Return a run and the branches below it, or an empty list if the run does not exist."""
    root = _read_root(transaction, run_id)
    if root is None:
        return []
    # Send both statements before the first result is read.
    runs, entries = transaction.execute(sql.TREE, [root.number]), transaction.execute(sql.JOURNAL, [root.number, 0])
    rows = runs.fetchall()
    numbers = _run_and_below(transaction, run_id, root)
    journals: dict[int, list[str]] = {row[0]: [] for row in rows if numbers is None or row[0] in numbers}
    for number, _, entry in entries.fetchall():
        if number in journals:
            journals[number].append(entry)

    def status_of(row: sql.Row) -> port.Status:
        return visible_status(row[3], root.cancel_requested, root.is_driven)

    return [sql.stored_run(row[1:], root.id, status_of(row), journals[row[0]]) for row in rows if row[0] in journals]


def _run_and_below(transaction: Transaction, run_id: str, root: RootRow) -> set[int] | None:
    """Return the row numbers of a run and of all branches below it. Return None for a root run: the whole tree."""
    if root.run == root.number:
        return None
    ids = {run_id}
    numbers: set[int] = set()
    for number, member_id, parent in transaction.execute(sql.PARENTS, [root.number]).fetchall():  # Parents come first.
        if member_id in ids or parent in ids:
            ids.add(member_id)
            numbers.add(number)
    return numbers


# The status of a run


def status_after_cancel(status: port.Status) -> port.Status:
    """Return the final status of a run that has a cancel request.

    `status` is the status without the cancel request. It stays the same if the run is already `done` or `failed`.
    """
    return status if status in ("done", "failed") else "cancelled"


def visible_status(status: port.Status, cancel_requested: bool, is_driven: bool) -> port.Status:
    """Convert the stored status of a run to the status that the store reports.

    A run that is stored as `running` but has no live process is reported as `stopped`, or as `cancelled` if it has a
    cancel request.
    """
    if status != "running" or is_driven:
        return status
    return "cancelled" if cancel_requested else "stopped"


# Commits


def is_simple(commit: port.Commit) -> bool:
    """Return True if a commit only adds journal entries to a running root run, which is the most common kind."""
    if len(commit.changes) != 1 or commit.requests or commit.media:
        return False
    change = commit.changes[0]
    return change.header is None and change.run_id == commit.root and change.status == "running"


def _branches_of_commit(commit: port.Commit) -> list[str]:
    """Return the ids of all runs that a commit changes, and of the parents of its new runs, without the root run."""
    changed = [change.run_id for change in commit.changes]
    parents = [change.header.parent for change in commit.changes if change.header and change.header.parent]
    return [run_id for run_id in dict.fromkeys([*changed, *parents]) if run_id != commit.root]


def _check_commit(commit: port.Commit, stored: Mapping[str, tuple[str, int]], store: str) -> None:
    """Raise `StoreError` if a commit does not fit the stored runs.

    `stored` maps the ids of stored runs to the ids of their root runs and the lengths of their journals. It contains
    the root run of the commit and the runs from `_branches_of_commit`.
    """
    lengths: dict[str, int] = {}
    for change in commit.changes:
        run_id, header = change.run_id, change.header
        root, stored_length = stored.get(run_id, (commit.root, None))
        length, problem = lengths.get(run_id, stored_length), None
        if header is not None:
            if run_id == commit.root:
                has_parent = header.parent is None
            else:
                has_parent = header.parent in lengths or stored.get(header.parent or "", ("",))[0] == commit.root
            if not has_parent:
                problem = f"create run {run_id}: its parent {header.parent!r} does not belong to run {commit.root}"
            elif length is not None:
                problem = f"create branch {run_id}: a run with this id is already in {store}"
        elif length is None or root != commit.root:
            problem = (
                f"store a change of run {run_id}: it does not belong to the root run of the commit. The first change "
                f"of a run needs a header"
            )
        elif length != change.offset:
            problem = (
                f"store a change of run {run_id}: the stored journal has {length} entries, but the change starts after "
                f"entry {change.offset}"
            )
        if problem is not None:
            raise StoreError(f"Cannot {problem}. Nothing was written.")
        lengths[run_id] = change.offset + len(change.entries)


def _values(change: port.Change, status: port.Status) -> sql.Row:
    """Return the values of `CHANGE_COLUMNS`."""
    return (status, *sql.change_values(change), change.offset + len(change.entries))


def insert_run(
    transaction: Transaction,
    change: port.Change,
    header: port.RunHeader,
    root: str,
    status: port.Status,
    process: str | None,
) -> None:
    """Insert a new run with its header, state and journal entries."""
    values = (
        change.run_id, root, header.parent, header.agent, header.started.timestamp(), header.batch, header.item,
        *_values(change, status), process,
    )  # fmt: skip
    transaction.store_run(sql.INSERT_RUN, values, change, header)


def send_simple_commit(transaction: Transaction, commit: port.Commit) -> Callable[[], bool]:
    """Store the most common kind of commit with as few statements as possible.

    Such a commit only adds journal entries to a running root run. Return a function that waits for the result and
    returns whether the commit was stored. Nothing is stored if the process has lost its claim, if the run has a cancel
    request or open requests, or if the offset is wrong.
    """
    change = commit.changes[0]
    values = (*_values(change, "running"), change.run_id, change.offset, commit.process.id)
    fetch_row = transaction.store_run(sql.UPDATE_RUNNING_ROOT, values, change, None)

    def was_stored() -> bool:
        row = fetch_row()
        if row is not None and row[2]:
            transaction.notify(sql.CHANGE_CHANNEL, str(row[0]))
        return row is not None

    return was_stored
