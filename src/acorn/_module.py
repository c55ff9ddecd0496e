"""The front door: the class that users derive from.

It declares the attributes. What an attribute means and what it may be is `_spec`'s business, whether a spec
still holds is `_declared`'s, and a call is `_call`'s.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, get_origin

from acorn._declare import spec_cache
from acorn._declare.generics import Deps, In, Out, check_deps, deps_type, read_generics
from acorn._declare.settings import SETTINGS, settings_in, without_overridden
from acorn._declare.spec_cache import (
    BASE,
    CALL_OPTIONS,
    LOCAL_NAMES,
    OPEN_SOURCES,
    SPEC_CACHE,
    CallOptions,
    ShapesDescriptor,
    ToolDescriptor,
    call_options,
    class_spec,
    spec_of,
)
from acorn._declare.tools.kinds import AS_TOOL
from acorn._drive.driven_run import LAST, last_run
from acorn._formats.schema.shape import SHAPES
from acorn.errors import AcornError, InputError
from acorn.record import Run, run_of
from acorn.types import JsonObject, Request

if TYPE_CHECKING:
    from acorn._call import call as _call
    from acorn._call.batch import AsyncBatch, Batch
    from acorn._call.submit import AsyncHandle, Handle
    from acorn.chunk import StreamChunk
    from acorn.step import Step
    from acorn.thread.events import AgentEvent
else:

    class _Late:
        """The machinery of a call. It loads when something is called: a program that only declares needs none of it."""

        def __getattr__(self, name: str) -> Any:
            from acorn._call import call

            return getattr(call, name)

    _call = _Late()

_UNSET: Any = object()
_HOOKS = ("on_start", "on_step", "on_stream", "on_finish", "on_human", "system_prompt")

Branched = TypeVar("Branched")


class module(Generic[In, Out, Deps]):
    """An LLM agent as a class.

        class Sentiment(module[Text, Verdict]):
            \"\"\"Classify the sentiment of the text.\"\"\"

            model = "openai/gpt-4o"

    A third type in the brackets is that of `deps`, which `using(deps=...)` brings along.
    """

    model: Any = SETTINGS["model"].default
    """A LiteLLM id, or a dict with `model` and any LiteLLM argument; or a list, the next to be asked where one fails.

        model = ["anthropic/claude-sonnet-4-5", {"model": "openai/gpt-4o", "num_retries": 0}]
    """
    temperature: float = SETTINGS["temperature"].default
    """Sampling temperature, 0 to 2."""
    max_tokens: int = SETTINGS["max_tokens"].default
    """The most tokens in one response."""
    max_steps: int | None = SETTINGS["max_steps"].default
    """The most steps of the loop; None is a single turn."""
    parse_retries: int = SETTINGS["parse_retries"].default
    """Corrections of an output that does not validate."""
    system_prompt: Any
    """A string, a Path or a method; without it the docstring is the prompt."""
    initial_input: Any = SETTINGS["initial_input"].default
    """What a call takes."""
    final_output: Any = SETTINGS["final_output"].default
    """What a call returns."""
    tools: Sequence[Any] = SETTINGS["tools"].default
    """Functions, callable objects and sources of tools."""
    branches: Mapping[str, Any] = SETTINGS["branches"].default
    """Modules that this one may start, by name."""
    cache: Any = SETTINGS["cache"].default
    """What the provider is asked to keep: `"auto"` is what it can, True the system message and the input; or points."""
    strict: bool | None = SETTINGS["strict"].default
    """Whether the provider holds the answer to its schema; None: where it takes the schema as it stands."""
    xml_include_descriptions: bool = SETTINGS["xml_include_descriptions"].default
    """Whether fields carry their descriptions in XML."""
    xml_description_format: str = SETTINGS["xml_description_format"].default
    """`"attribute"` or `"comment"`."""
    xml_include_none: bool = SETTINGS["xml_include_none"].default
    """Whether None is written as an empty element instead of left out."""
    xml_input_root: str = SETTINGS["xml_input_root"].default
    """The element around the input."""
    xml_output_root: str = SETTINGS["xml_output_root"].default
    """The element around an answer that is asked for as XML."""
    xml_context_root: str = SETTINGS["xml_context_root"].default
    """The element around what `step.add_to_context` adds."""

    max_total_tokens: int | None = SETTINGS["max_total_tokens"].default
    """Tokens that a whole run may use, branches included."""
    max_cost: float | None = SETTINGS["max_cost"].default
    """Dollars that a whole run may cost, branches included."""
    max_seconds: float | None = SETTINGS["max_seconds"].default
    """Seconds that a whole run may take, branches included."""
    compact_at: int | None = SETTINGS["compact_at"].default
    """Tokens of a conversation from which on older steps are replaced by a summary that the model writes."""
    rate_limit: Mapping[str, Any] | None = SETTINGS["rate_limit"].default
    """Requests and tokens in any window of `per` seconds, for all runs of the class in a process:
    `{"requests": 60, "tokens": 100_000, "per": 60}`."""
    max_concurrency: int | None = SETTINGS["max_concurrency"].default
    """Model calls at once, for all runs of the class in a process."""
    max_depth: int = SETTINGS["max_depth"].default
    """How deep branches may nest."""
    max_media_bytes: int | None = SETTINGS["max_media_bytes"].default
    """How much of pictures, sounds and files a request may carry; None is no limit."""
    store: Any = SETTINGS["store"].default
    """Where runs are kept: a file such as `"runs.db"`, or a store; None keeps none."""
    loop_guard: str | None = SETTINGS["loop_guard"].default
    """What happens to a run that repeats itself: `"notice"`, `"force"` or None."""
    history_format: str = SETTINGS["history_format"].default
    """How the conversation is sent: as `"messages"`, or as one `"thread"` document in a user message."""

    def __init__(self, **overrides: Any) -> None:
        for name, value in overrides.items():
            _check_name(type(self), name)
            setattr(self, name, value)
        if overrides:
            spec_of(self)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        read_generics(cls, module)
        _warn_of_near_misses(cls)
        setattr(cls, LOCAL_NAMES, {**getattr(cls, LOCAL_NAMES, {}), **_local_names(cls)})
        class_spec(cls)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {_model_id(self.model)}>"

    def __getstate__(self) -> JsonObject:
        # What an instance remembers of its spec and its runs, and what it keeps open, is not part of it: copies and
        # pickles begin anew.
        return {name: value for name, value in list(vars(self).items()) if name not in (SPEC_CACHE, LAST, OPEN_SOURCES)}

    # Sources of tools, kept open

    def __enter__(self) -> Self:
        """Open the sources of tools once for all calls in the block, instead of anew for each.

        with agent:
            agent(question="...")
            agent(question="...")
        """
        _call.open_sources(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        _call.close_sources(self, error)

    async def __aenter__(self) -> Self:
        """The same on the event loop: `async with agent:`."""
        await _call.aopen_sources(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await _call.aclose_sources(self, error)

    # Ways to call

    def __call__(self, /, *args: Any, **kwargs: Any) -> Out:
        """Run the module and return its output.

            print(agent(question="What are acorns?").answer)

        The input is given by name, or as one instance of the input class; what does not fit is an `InputError`.
        """
        return cast(Out, self.run(*args, **kwargs).output)

    async def acall(self, /, *args: Any, **kwargs: Any) -> Out:
        """The same on the event loop."""
        return cast(Out, (await self.arun(*args, **kwargs)).output)

    def run(self, /, *args: Any, **kwargs: Any) -> Run[Out, Deps]:
        """Run the module and return the record of the run, whose `output` is the result.

            run = agent.run(question="What are acorns?")
            print(run.output.answer, run.steps, run.usage.requests)

        Of a run that fails the record hangs on the error: `error.run`.
        """
        return _call.run(self, args, kwargs)

    async def arun(self, /, *args: Any, **kwargs: Any) -> Run[Out, Deps]:
        """The same on the event loop."""
        return await _call.arun(self, args, kwargs)

    def stream(self, /, *args: Any, **kwargs: Any) -> Generator[StreamChunk[Out]]:
        """Iterate over the answer as it comes in; the last chunk has `result` and `run`.

            for chunk in agent.stream(question="..."):
                print(chunk.content or "", end="")

        Leaving the loop early cancels the run.
        """
        return _call.stream(self, args, kwargs)

    def astream(self, /, *args: Any, **kwargs: Any) -> AsyncGenerator[StreamChunk[Out]]:
        """The same on the event loop: `async for chunk in agent.astream(...)`."""
        return _call.astream(self, args, kwargs)

    # Runs that are kept in a store

    def resume(
        self,
        run_id: str,
        /,
        *,
        answer: Any = _UNSET,
        answers: Mapping[str, Any] = MappingProxyType({}),
        deps: Deps = _UNSET,
    ) -> Out:
        """Go on with a run that was interrupted, or waits for people, and return its output.

            out = agent(question="...")
            if not out:  # it waits
                out = agent.resume(out.run_id, answer=True)

        What was committed is neither asked of the model nor executed again. A run that had ended well gives its
        output again. `answers` has one for each request, by its id.
        """
        agent = self if deps is _UNSET else self.using(deps=deps)
        given = answers if answer is _UNSET else answer
        return cast(Out, _call.resume(agent, run_id, given, is_one=answer is not _UNSET).output)

    async def aresume(
        self,
        run_id: str,
        /,
        *,
        answer: Any = _UNSET,
        answers: Mapping[str, Any] = MappingProxyType({}),
        deps: Deps = _UNSET,
    ) -> Out:
        """The same on the event loop."""
        agent = self if deps is _UNSET else self.using(deps=deps)
        given = answers if answer is _UNSET else answer
        return cast(Out, (await _call.aresume(agent, run_id, given, is_one=answer is not _UNSET)).output)

    # Runs that are driven elsewhere

    def submit(self, /, *args: Any, **kwargs: Any) -> Handle[Out]:
        """Put a run into the store, for its workers (`acorn work`) to drive, and return a handle on it.

            handle = Desk(store="postgresql://host/name").submit(question="...")
            print(handle.run_id, handle.result(timeout=60))

        `using(run_id=..., priority=..., not_before=...)` names it, and says when it is its turn. The same `run_id` and
        input again give a handle on the same run.
        """
        return _call.submit(self, args, kwargs)

    async def asubmit(self, /, *args: Any, **kwargs: Any) -> AsyncHandle[Out]:
        """The same on the event loop; what its handle does is awaited."""
        return await _call.asubmit(self, args, kwargs)

    # Many inputs

    def map(
        self,
        rows: Iterable[Any],
        /,
        *,
        concurrency: int | None = None,
        id: str | None = None,
        key: Callable[[Any], Any] | None = None,
        max_cost: float | None = None,
        retry_failed: bool = False,
        queue: bool = False,
    ) -> Batch[Out]:
        """A run for each row, eight at a time or as many as you say.

        Iterate for the items as they end, or take all `results()`.

            for item in agent.map(rows, concurrency=16):
                print(item.index, item.output or item.error)

        With a store and an `id`, the same call again skips what is done and goes on with what was interrupted; a row is
        known by its place, or by what `key` says of it. With `queue=True` the workers of the store (`acorn work`)
        drive the runs, and go on with them if you leave the loop.
        """
        return _call.batch(self, rows, _call.BatchOptions(concurrency, id, key, max_cost, retry_failed, queue))

    def amap(
        self,
        rows: Iterable[Any],
        /,
        *,
        concurrency: int | None = None,
        id: str | None = None,
        key: Callable[[Any], Any] | None = None,
        max_cost: float | None = None,
        retry_failed: bool = False,
        queue: bool = False,
    ) -> AsyncBatch[Out]:
        """The same on the event loop: `async for item in agent.amap(rows)`."""
        return _call.abatch(self, rows, _call.BatchOptions(concurrency, id, key, max_cost, retry_failed, queue))

    # Branches of this instance's run, from code inside of it

    def branch(self, which: type[module[Any, Branched]] | module[Any, Branched], /, **inputs: Any) -> Branched:
        """Run another module, a class or an instance, from here: it inherits the conversation, tools and settings.

            def on_step(self, step):
                review = self.branch(ReviewBranch)

        The result is returned and nothing else; a failure is a `BranchError`.
        """
        return _call.branch(self, which, inputs)

    async def abranch(self, which: type[module[Any, Branched]] | module[Any, Branched], /, **inputs: Any) -> Branched:
        """The same on the event loop."""
        return await _call.abranch(self, which, inputs)

    def branch_all(
        self,
        branches: Sequence[tuple[type[module[Any, Any]] | module[Any, Any], Mapping[str, Any]]],
        *,
        concurrency: int | None = None,
    ) -> list[Any]:
        """Run several branches at the same time; the results in order, failures as `BranchError` objects.

            def on_step(self, step):
                first, second = self.branch_all([(ReviewBranch, {}), (ReviewBranch, {})], concurrency=2)

        Without `concurrency` all run at once.
        """
        return _call.branch_all(self, branches, concurrency)

    def using(
        self,
        *,
        history: Any = _UNSET,
        deps: Deps = _UNSET,
        run_id: Any = _UNSET,
        priority: Any = _UNSET,
        not_before: Any = _UNSET,
        deliver: Any = _UNSET,
        thread: Any = _UNSET,
        before: Any = _UNSET,
        **overrides: Any,
    ) -> Self:
        """A light copy with other settings, an earlier conversation, something for the tools to use, or a name.

        With `thread`, the events of a run or its record, the next call is a fork of that run: it keeps what happened
        before the step `before`, counted as `iteration` in the events, and goes on there. It takes the same input
        where the call has none.

            agent.using(thread=run.thread, before=2, model="openai/gpt-4o")()

        A call of `using(run_id="order-17")` begins a run by that id in the store; called again with the same input,
        it goes on with what was interrupted, and gives again what had ended.

        `priority`, `not_before` (a moment, or how long from the call) and `deliver` are for `submit` and
        `map(..., queue=True)`; with `deliver=False` the run waits for whoever hands its id to `acorn.durable.perform`.

        The original stays as it is.

            run = agent.run(question="Who won in 1994?")
            agent.using(history=run)(question="And in 1990?")
        """
        other = copy.copy(self)
        _make_way(vars(other), overrides)
        module.__init__(other, **overrides)
        known, owner = call_options(self), type(self).__name__
        if deps is not _UNSET:
            check_deps(owner, deps_type(self), deps)
        queueing = {"priority": priority, "not_before": not_before, "deliver": deliver}
        queueing = {name: value for name, value in queueing.items() if value is not _UNSET}
        vars(other)[CALL_OPTIONS] = CallOptions(
            prior=known.prior if history is _UNSET else _call.prior_messages(history, owner),
            deps=known.deps if deps is _UNSET else deps,
            run_id=known.run_id if run_id is _UNSET else _call.checked_id(run_id, owner),
            queueing=_call.check_queueing(known.queueing, owner, queueing) if queueing else known.queueing,
            fork=known.fork if thread is before is _UNSET else _call.fork_of(_or_none(thread), _or_none(before), owner),
        )
        _check_one_past(call_options(other), owner)
        if OPEN_SOURCES in vars(self):
            vars(other)[OPEN_SOURCES] = vars(self)[OPEN_SOURCES].for_copy()
        return other

    @classmethod
    def override(cls, **overrides: Any) -> AbstractContextManager[None]:
        """For tests: settings that hold in the block for every instance of the class and its subclasses.

            with Researcher.override(model=AnyModel()):
                application()

        They count whatever an instance or `using` sets, wherever it is made in this context (tasks and
        `asyncio.to_thread` take it along, a thread of your own does not); a step still has the last word.
        """
        for name in overrides:
            _check_name(cls, name)
        spec_cache.check_overrides(cls, overrides)
        return spec_cache.OverrideBlock(cls, overrides)

    # Hooks, for subclasses to override

    def on_start(self, step: Step[Deps]) -> Step[Deps] | None:
        """Called once a run, before the model is first asked; `step.counter` is 0, and nothing was called yet.

        def on_start(self, step):
            step.add_to_context({"today": "Monday"})
        """
        return step

    def on_step(self, step: Step[Deps]) -> Step[Deps] | None:
        """Called after each step, before the model reads the tool results.

        def on_step(self, step):
            for result in step.tool_results:
                result.output = str(result.output)[:5000]
        """
        return step

    def on_stream(self, chunk: StreamChunk[Out]) -> Any:
        """Called with each chunk of a response while it comes in; overriding it makes requests stream.

        def on_stream(self, chunk):
            print(chunk.content or "", end="")
        """
        return None

    def on_finish(self, output: Out) -> Any:
        """Called with every output before it is returned; a `ValueError` sends it back to the model.

            def on_finish(self, output):
                if not output.answer:
                    raise ValueError("answer must not be empty")

        What it returns, if anything, takes the place of the output.
        """
        return None

    def on_human(self, request: Request) -> Any:
        """Called with what the run, or a branch of it, asks people; None means that nobody is here to answer.

        def on_human(self, request):
            return input(request.question) or None
        """
        return None

    # The run, from inside and afterwards

    @property
    def deps(self) -> Deps:
        """What `using(deps=...)` brought along, for the tools and hooks of the run this code belongs to."""
        run: Run | None = run_of(self)
        found: Deps = call_options(self).deps if run is None else run.deps
        return found

    @property
    def history(self) -> list[JsonObject]:
        """The conversation: of the run this code belongs to, else of the last one that ended here."""
        run = run_of(self) or last_run(self)
        return [] if run is None else run.history

    @history.setter
    def history(self, messages: list[JsonObject]) -> None:
        run = run_of(self)
        if run is None:
            raise AttributeError(
                f"`history` of `{type(self).__name__}` can be replaced inside its hooks and tools; "
                f"to begin with an earlier conversation, call `agent.using(history=messages)(...)`."
            )
        if not isinstance(messages, list):
            raise AcornError(f"`history` must be a list of messages, got `{type(messages).__name__}`.")
        run.history = messages

    @property
    def thread(self) -> list[AgentEvent]:
        """What happened, as events: in the run this code belongs to, else in the last one that ended here."""
        run = run_of(self) or last_run(self)
        return [] if run is None else run.thread

    @property
    def last(self) -> Run[Out, Deps] | None:
        """The record of the last run that ended in this task, else in this thread, well or not."""
        return last_run(self)


setattr(module, BASE, module)
setattr(module, AS_TOOL, ToolDescriptor())
setattr(module, SHAPES, ShapesDescriptor())
Module = module


def _or_none(value: Any) -> Any:
    return None if value is _UNSET else value


def _check_one_past(brought: CallOptions, owner: str) -> None:
    if brought.fork is not None and brought.prior:
        raise InputError(
            f"`history` and `thread` of `{owner}.using` exclude each other: a fork has its thread's conversation."
        )


def _make_way(own: dict[str, Any], nearer: Mapping[str, Any]) -> None:
    """Take from the attributes of an instance what others overrule that are set on top of them."""
    if "model" in own:
        own["model"] = without_overridden(own["model"], nearer)
    for attribute, _ in settings_in(nearer.get("model")):
        own.pop(attribute, None)


def _local_names(cls: type) -> JsonObject:
    """The types around a class that is defined inside a function, for the hints of its tools."""
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") != cls.__module__ and frame.f_back is not None:
        frame = frame.f_back
    if frame.f_locals is frame.f_globals:
        return {}
    return {
        name: value
        for name, value in frame.f_locals.items()
        if isinstance(value, type) or get_origin(value) is not None
    }


def _check_name(cls: type, name: str) -> None:
    if name not in SETTINGS and name in class_spec(cls).input.schema.model_fields:
        call = f"{cls.__name__}()({name}=...)"
        raise TypeError(f"`{name}` is an input of `{cls.__name__}`, which the call takes: `{call}`")
    if name not in SETTINGS:
        raise TypeError(f"`{cls.__name__}` has no attribute `{name}` to set{_hint(name)}")


def _warn_of_near_misses(cls: type) -> None:
    for name, value in vars(cls).items():
        is_nested = isinstance(value, type) and value.__qualname__.startswith(f"{cls.__qualname__}.")
        is_method = not isinstance(value, type) and hasattr(value, "__get__")
        if name.startswith("_") or name in SETTINGS or name in _HOOKS or is_nested:
            continue
        if hint := _hint(name, _HOOKS if is_method else SETTINGS):
            warnings.warn(f"`{cls.__name__}.{name}` is not an attribute of modules{hint}", UserWarning, stacklevel=3)


def _hint(name: str, names: Iterable[str] = SETTINGS) -> str:
    near = [known for known in names if _is_near(name, known)]
    return f"; did you mean `{near[0]}`?" if near else ""


def _is_near(one: str, other: str) -> bool:
    """Whether at most two letters were changed, added or left out."""
    if abs(len(one) - len(other)) > 2:
        return False
    row = list(range(len(other) + 1))
    for at, letter in enumerate(one, start=1):
        above, row = row, [at]
        for column, wanted in enumerate(other, start=1):
            row.append(min(above[column] + 1, row[-1] + 1, above[column - 1] + (letter != wanted)))
        if min(row) > 2:
            return False
    return row[-1] <= 2


def _model_id(model: Any) -> str:
    """A model, or a list of them, without secrets."""
    if isinstance(model, list | tuple):
        return f"model=[{', '.join(_model_id(each).removeprefix('model=') for each in model)}]"
    if isinstance(model, dict):
        model = model.get("model", model.get("id"))
    return f"model={model!r}" if isinstance(model, str) else f"model={type(model).__name__}" if model else "no model"
