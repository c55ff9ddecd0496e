"""Whether a commit fits what is kept: the same rules for stores that look at them before they write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from acorn.stores import words
from acorn.stores.port import Commit


class Known(NamedTuple):
    """A run that is kept: the tree that it is in, and how many entries it has."""

    root: str
    length: int


def is_birth(commit: Commit) -> bool:
    """Whether the root itself is new."""
    first = commit.changes[0] if commit.changes else None
    return first is not None and first.run_id == commit.root and first.birth is not None


def named(commit: Commit) -> list[str]:
    """The runs that it is about, and those that they are to be born below."""
    parents = [one.birth.parent for one in commit.changes if one.birth is not None and one.birth.parent is not None]
    return list(dict.fromkeys([*(one.run_id for one in commit.changes), *parents]))


def refuse_misfits(commit: Commit, kept: Mapping[str, Known], store: str) -> None:
    """Whether all of it fits, before any of it is kept; `kept` has what there is of the runs that it names."""
    lengths: dict[str, int] = {}
    for change in commit.changes:
        run = kept.get(change.run_id)
        known = lengths.get(change.run_id, None if run is None else run.length)
        if change.birth is not None:
            if not _has_parent(change.run_id, change.birth.parent, commit.root, lengths, kept):
                raise words.orphan(change.run_id, change.birth.parent, commit.root)
            if known is not None:
                raise words.born_twice(change.run_id, store)
        elif known is None or (run is not None and run.root != commit.root):
            raise words.torn(change.run_id, None, change.since)
        elif known != change.since:
            raise words.torn(change.run_id, known, change.since)
        lengths[change.run_id] = change.since + len(change.entries)


def _has_parent(run_id: str, parent: str | None, root: str, born: Mapping[str, int], kept: Mapping[str, Known]) -> bool:
    if parent is None or run_id == root:
        return parent is None and run_id == root
    return parent in born or (parent in kept and kept[parent].root == root)
