"""A tree of machines that are saved as JSON text and loaded after every tell, as if each were the last of a process.

Drivers do not notice the replacement, because they refer to runs by id. Running work continues, and the new
machine receives its result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from acorn._drive.tree import Tree
from acorn._formats.blobs import BlobReader, save_text
from acorn._formats.json import to_json_data
from acorn._machine.asks import AskHook, AskSource
from acorn._machine.machine import Machine
from acorn._machine.plan import Plan
from acorn._machine.saved_run import load, save
from acorn._machine.state import BranchContext
from acorn.journal import BranchFinished
from acorn.record import TOOL_ASK_PREFIX
from acorn.types import JsonObject


def _read(text: str, plain: Any) -> Any:
    """Return what was saved, as from a store: media data comes separately."""
    kept, data = save_text(plain)
    return BlobReader(lambda _: {each.sha256: each.raw() for each in data}).read(kept) if data else json.loads(text)


class SavedTree(Tree):
    """A tree of such machines."""

    def __init__(
        self,
        root: Machine,
        saved: Mapping[str, JsonObject] | None = None,
        answers: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(root, saved, answers)
        self._plans: dict[str, Plan] = {root.run.id: root.plan}
        self.restarts = 0

    def branch(self, context: BranchContext, plan: Plan) -> None:
        with self._lock:
            super().branch(context, plan)
            self._plans[context.run_id] = plan

    def tell(self, run_id: str, ask_id: str, outcome: Any) -> None:
        with self._lock:
            super().tell(run_id, ask_id, outcome)
            if not any(self._in_a_hook(loop) for loop in self.machines.values()):
                self._begin_anew()

    def _in_a_hook(self, loop: Machine) -> bool:
        """Skip hooks: a hook holds the step, and no other process could continue with it."""
        has_begun = loop.run.id in self.driven and not loop.is_over
        asks = loop.asks(self.now(loop.run.id)) if has_begun else []
        return any(isinstance(ask, AskHook | AskSource) and ask.id in loop.state.open_asks for ask in asks)

    def _begin_anew(self) -> None:
        plain = {run_id: save(loop) for run_id, loop in self.machines.items()}
        texts = {run_id: json.dumps(each) for run_id, each in plain.items()}
        before = dict(self.machines)
        for run_id, text in texts.items():  # A parent precedes its branches.
            assert text == json.dumps(save(before[run_id])), "saving changed the run"
            old, saved = before[run_id], _read(text, plain[run_id])
            context = None if saved["branch"] is None else BranchContext.from_json(saved["branch"])
            plan = self._plans[run_id]
            if context is not None:
                parent = self.machines[context.parent_id]
                plan = parent.branches.plan_for(context, plan)
                if any(
                    isinstance(entry, BranchFinished) and entry.child_id == run_id for entry in parent.journal.entries
                ):
                    plan = replace(plan, above=())  # The parent has counted it.
            # Running work continues here, so calls with `once` are not unknown.
            open_asks = saved["state"]["open_asks"]
            saved["state"]["open_asks"] = {
                each: at for each, at in open_asks.items() if not each.startswith(TOOL_ASK_PREFIX)
            }
            new = load(plan, saved, old.run.deps)
            was, made = old.run._history.current, new.run._history.current  # Not `history`, which would hand it out.
            assert old.run.error is not None or made == json.loads(json.dumps(to_json_data(was)))
            self._keep_the_record(old, new)
            self.machines[run_id] = new
            if context is not None:
                self.machines[context.parent_id].run.branches.append(new.run)
            if not new.is_over and run_id in self.driven:
                now = self.now(run_id)
                new.start(now)
                new.state.open_asks.update(open_asks)
                for at, tools in enumerate(old.builder.source_tools):
                    new.tell(f"source {at}", [tool.function for tool in tools], now)
        self.restarts += 1

    def _keep_the_record(self, old: Machine, new: Machine) -> None:
        """Keep the record, which user code may hold; another process would get a new one."""
        kept = {name: getattr(old.run, name) for name in ("output", "error", "stop_reason", "_history", "seconds")}
        fresh = vars(new.run)
        fresh["branches"] = [record for record in old.run.branches if record.id not in self.machines]  # Ended long ago.
        if old.is_over:
            fresh.update(kept)
        vars(old.run).clear()
        vars(old.run).update(fresh)
        for part in (new, new.transcript, new.builder, new.hook, new.branches, new.calls, new.answers):
            part.run = old.run
