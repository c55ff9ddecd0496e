"""The base class of all agents: declare, call, stream, resume, submit, map and branch.

This file declares the attributes and methods. `_declare/` compiles and checks a class, and `_call/` executes its calls.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Never, Self, TypeVar, cast

from acorn._declare.generics import Deps, In, Out, local_types, set_type_arguments
from acorn._declare.module_base import NOT_COPIED, AgentBase, last_run, set_call_options, set_private
from acorn._declare.settings import SETTINGS, describe_model, remove_overridden
from acorn._declare.spec_cache import (
    OverrideBlock,
    ShapesDescriptor,
    ToolDescriptor,
    check_class_body,
    check_setting_name,
    class_spec,
    spec_of,
    warn_about_assignment,
)
from acorn._formats.json import excerpt
from acorn._formats.redact import Unpickled
from acorn.errors import AcornError
from acorn.record import Run, run_of
from acorn.types import JsonObject, Message, Request

if TYPE_CHECKING:
    from acorn._call.batch import AsyncBatch, Batch
    from acorn._call.call import AgentCaller
    from acorn._call.submit import AsyncHandle, Handle
    from acorn.chunk import StreamChunk
    from acorn.step import Step
    from acorn.thread.events import AgentEvent

_UNSET: Any = object()
_SECRET_SETTINGS = frozenset(("model", "store", "tools"))
"""The attributes whose value may contain an API key or a password."""

Branched = TypeVar("Branched")


def _caller(agent: module[Any, Out, Deps]) -> AgentCaller[Out, Deps]:
    """Return the `AgentCaller` of an agent.

    A program that only declares classes never imports the `AgentCaller` or asyncio.
    """
    if not isinstance(agent, module):  # As in `Desk.stream("hi")`.
        raise TypeError(f"An agent is called on an instance, as in `Desk().run(...)`, but got {excerpt(agent)}.")
    from acorn._call.call import AgentCaller

    return AgentCaller(agent)


def _refuse_positional(values: tuple[object, ...]) -> None:
    if values:
        raise TypeError(
            "A branch takes its inputs as keyword arguments, as in `self.branch(Review, text=...)`. "
            "The name of an input of a plain type is `input`."
        )


class module(AgentBase, Generic[In, Out, Deps]):
    """An LLM agent as a class.

        class Sentiment(module[Text, Verdict]):
            \"\"\"Classify the sentiment of the text.\"\"\"

            model = "openai/gpt-4o"

    The types in the brackets are the input, the output and, optionally, the object for `using(deps=...)`.
    """

    model: Any = SETTINGS["model"].default
    """A model id, a dict with `model` and any LiteLLM arguments, or a list of models.

    If a model of a list fails, the next model of the list gets the request.

        model = ["anthropic/claude-sonnet-4-5", {"model": "openai/gpt-4o", "num_retries": 0}]
    """
    temperature: float = SETTINGS["temperature"].default
    """The sampling temperature, from 0 to 2."""
    max_tokens: int = SETTINGS["max_tokens"].default
    """The maximum number of tokens in one response."""
    max_steps: int | None = SETTINGS["max_steps"].default
    """The maximum number of steps of a run. None means a single turn."""
    parse_retries: int = SETTINGS["parse_retries"].default
    """The number of times that the model may correct an output that is not valid."""
    system_prompt: Any
    """The system prompt: a string, a `Path` or a method. By default it is the docstring of the class."""
    initial_input: Any = SETTINGS["initial_input"].default
    """The type of the input: a Pydantic class, a list or dict of fields, or any type that Pydantic can validate.

        initial_input = {"question": str, "limit": (int, 10)}

    A call passes the fields of a Pydantic class, a dataclass or a TypedDict as keyword arguments, and a value of
    another type as the only argument. Where such a value needs a name, the name is `input`.
    """
    final_output: Any = SETTINGS["final_output"].default
    """The type of the output, in the same forms. If it is not a class with fields, its name is `result`."""
    tools: Sequence[Any] = SETTINGS["tools"].default
    """The tools that the model may call: functions, callable objects, agents and tool sources."""
    branches: Mapping[str, Any] = SETTINGS["branches"].default
    """A dict that maps names to the modules that the model may start as branches."""
    cache: Any = SETTINGS["cache"].default
    """The parts of a request that the provider should cache: `"auto"` for as much as it can, True for the system
    message and the input, or a list of cache points."""
    strict: bool | None = SETTINGS["strict"].default
    """Whether the provider must enforce the schema of the output. None means: if the provider supports the schema."""
    xml_include_descriptions: bool = SETTINGS["xml_include_descriptions"].default
    """Whether the XML contains the descriptions of the fields."""
    xml_description_format: str = SETTINGS["xml_description_format"].default
    """The format of descriptions in the XML: `"attribute"` or `"comment"`."""
    xml_include_none: bool = SETTINGS["xml_include_none"].default
    """Whether the XML contains an empty element for a value that is None. By default, it omits such a value."""
    xml_input_root: str = SETTINGS["xml_input_root"].default
    """The name of the XML element that contains the input."""
    xml_output_root: str = SETTINGS["xml_output_root"].default
    """The name of the XML element that contains the output, if the model must answer in XML."""
    xml_context_root: str = SETTINGS["xml_context_root"].default
    """The name of the XML element that contains the data of `step.add_to_context`."""

    max_total_tokens: int | None = SETTINGS["max_total_tokens"].default
    """The maximum number of tokens of a run and its branches."""
    max_cost: float | None = SETTINGS["max_cost"].default
    """The maximum cost of a run and its branches, in dollars."""
    max_seconds: float | None = SETTINGS["max_seconds"].default
    """The maximum duration of a run and its branches, in seconds."""
    compact_at: int | None = SETTINGS["compact_at"].default
    """The number of tokens of a conversation above which the model summarizes older steps."""
    rate_limit: Mapping[str, Any] | None = SETTINGS["rate_limit"].default
    """The maximum number of requests and tokens in a window of `per` seconds, for all runs of the class in a process:
    `{"requests": 60, "tokens": 100_000, "per": 60}`."""
    max_concurrency: int | None = SETTINGS["max_concurrency"].default
    """The maximum number of concurrent model requests, for all runs of the class in a process."""
    max_depth: int = SETTINGS["max_depth"].default
    """The maximum depth of nested branches."""
    max_media_bytes: int | None = SETTINGS["max_media_bytes"].default
    """The maximum size of the images, audio and files in a request, in bytes. None means no limit."""
    store: Any = SETTINGS["store"].default
    """The store for the runs: a file such as `"runs.db"`, a database URL, or a store object. None means no store."""
    loop_guard: str | None = SETTINGS["loop_guard"].default
    """The reaction to a run that repeats itself: `"notice"`, `"force"` or None."""
    history_format: str = SETTINGS["history_format"].default
    """The format of the conversation in a request: `"messages"`, or `"thread"` for one XML document."""

    __acorn_as_tool__ = ToolDescriptor()
    __acorn_shapes__ = ShapesDescriptor()

    def __init__(self, *positional: Never, **overrides: Any) -> None:
        if positional:
            name = type(self).__name__
            raise TypeError(f"`{name}` takes its settings as keyword arguments, as in `{name}(model=...)`.")
        for name, value in overrides.items():
            check_setting_name(type(self), name)
            setattr(self, name, value)
        if overrides:
            spec_of(self)

    if not TYPE_CHECKING:  # With `__setattr__`, a type checker would accept any name.

        def __setattr__(self, name: str, value: Any) -> None:
            if not name.startswith("_"):
                warn_about_assignment(self, name, value)
            super().__setattr__(name, value)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        set_type_arguments(cls, module)
        check_class_body(cls)
        cls.__acorn_locals__ = {**cls.__acorn_locals__, **local_types(cls)}
        class_spec(cls)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {describe_model(self.model)}>"

    def __getstate__(self) -> JsonObject:
        # Copy the items first, because a run that ends in another thread may add an attribute at the same time.
        state = {name: value for name, value in list(vars(self).items()) if name not in NOT_COPIED}
        for name in _SECRET_SETTINGS & state.keys():  # A pickle must not contain an API key or a password.
            state[name] = Unpickled(state[name])
        return state

    def __setstate__(self, state: JsonObject) -> None:
        for name, value in state.items():
            set_private(self, name, value.value if type(value) is Unpickled else value)

    # Tool sources that stay open for several calls

    def __enter__(self) -> Self:
        """Open the tool sources once for all calls in the block, instead of once for each call.

        with agent:
            agent(question="...")
            agent(question="...")
        """
        _caller(self).open_sources()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        _caller(self).close_sources(error)

    async def __aenter__(self) -> Self:
        """Open the tool sources once for all calls in the block, on the event loop: `async with agent:`."""
        await _caller(self).aopen_sources()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await _caller(self).aclose_sources(error)

    # Calls

    def __call__(self, /, *args: Any, **kwargs: Any) -> Out:
        """Run the module and return its output.

            print(agent(question="What are acorns?").answer)

        Pass the input as keyword arguments, or as one instance of the input class. An input that does not fit raises
        `InputError`.
        """
        return cast(Out, self.run(*args, **kwargs).output)

    async def acall(self, /, *args: Any, **kwargs: Any) -> Out:
        """Run the module on the event loop and return its output."""
        return cast(Out, (await self.arun(*args, **kwargs)).output)

    def run(self, /, *args: Any, **kwargs: Any) -> Run[Out, Deps]:
        """Run the module and return the record of the run.

        The attribute `output` of the record is the result.

            run = agent.run(question="What are acorns?")
            print(run.output.answer, run.steps, run.usage.requests)

        If the run fails, the error has the record as `error.run`.
        """
        return _caller(self).run(args, kwargs)

    async def arun(self, /, *args: Any, **kwargs: Any) -> Run[Out, Deps]:
        """Run the module on the event loop and return the record of the run."""
        return await _caller(self).arun(args, kwargs)

    def stream(self, /, *args: Any, **kwargs: Any) -> Generator[StreamChunk[Out]]:
        """Run the module, and yield the chunks of its responses.

        The last chunk has `result` and `run`.

            for chunk in agent.stream(question="..."):
                print(chunk.content or "", end="")

        If you leave the loop early, the run is cancelled.
        """
        return _caller(self).stream(args, kwargs)

    def astream(self, /, *args: Any, **kwargs: Any) -> AsyncGenerator[StreamChunk[Out]]:
        """Run the module on the event loop, and yield its chunks: `async for chunk in agent.astream(...)`."""
        return _caller(self).astream(args, kwargs)

    # Stored runs

    def resume(
        self,
        run_id: str,
        /,
        *,
        answer: Any = _UNSET,
        answers: Mapping[str, Any] = MappingProxyType({}),
        deps: Deps = _UNSET,
        retry: bool = False,
    ) -> Out:
        """Resume a stored run that was interrupted or waits for human input, and return its output.

            out = agent(question="...")
            if not out:  # The run is paused.
                out = agent.resume(out.run_id, answer=True)

        acorn does not repeat committed model requests and tool calls. If the run has already finished, its stored
        output is returned. Use `answer` if the run has one open request. If it has several, use `answers`, a dict that
        maps request ids to answers. A run that failed because five processes died at the same step stays failed, unless
        you set `retry=True`.
        """
        agent = self if deps is _UNSET else self.using(deps=deps)
        is_single = answer is not _UNSET
        run = _caller(agent).resume(run_id, answer if is_single else answers, is_single=is_single, retry=retry)
        return cast(Out, run.output)

    async def aresume(
        self,
        run_id: str,
        /,
        *,
        answer: Any = _UNSET,
        answers: Mapping[str, Any] = MappingProxyType({}),
        deps: Deps = _UNSET,
        retry: bool = False,
    ) -> Out:
        """Resume a stored run on the event loop, and return its output."""
        agent = self if deps is _UNSET else self.using(deps=deps)
        is_single = answer is not _UNSET
        run = await _caller(agent).aresume(run_id, answer if is_single else answers, is_single=is_single, retry=retry)
        return cast(Out, run.output)

    def submit(self, /, *args: Any, **kwargs: Any) -> Handle[Out]:
        """Put a run into the store for the workers (`acorn work`), and return a handle to the run.

            handle = Desk(store="postgresql://host/name").submit(question="...")
            print(handle.run_id, handle.result(timeout=60))

        `using(run_id=..., priority=..., not_before=...)` sets the id, the priority and the earliest start of the run.
        If you submit the same `run_id` and input again, you get a handle to the same run.
        """
        return _caller(self).submit(args, kwargs)

    async def asubmit(self, /, *args: Any, **kwargs: Any) -> AsyncHandle[Out]:
        """Put a run into the store on the event loop, and return a handle with async methods."""
        return await _caller(self).asubmit(args, kwargs)

    # Batches

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
        """Run the module for each row, `concurrency` rows at a time (default 8).

        Iterate over the batch to get each item when its run ends, or call `results()` for a list of all outputs.

            for item in agent.map(rows, concurrency=16):
                print(item.index, item.output or item.error)

        With a store and an `id`, the same call again skips finished rows and resumes interrupted ones. acorn recognizes
        a row by its position, or by the value of `key(row)`. With `queue=True`, the workers of the store (`acorn work`)
        drive the runs, which continue if you leave the loop.
        """
        return _caller(self).map(rows, concurrency, id, key, max_cost, retry_failed, queue)

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
        """Run the module for each row on the event loop: `async for item in agent.amap(rows)`."""
        return _caller(self).amap(rows, concurrency, id, key, max_cost, retry_failed, queue)

    # Branches, from tools and hooks

    def branch(
        self, which: type[module[Any, Branched]] | module[Any, Branched], /, *positional: Never, **inputs: Any
    ) -> Branched:
        """Run another module as a branch, and return its output.

        The module is a class or an instance. The branch inherits the conversation, tools and settings of this run.

            def on_step(self, step):
                review = self.branch(ReviewBranch)

        If the branch fails, `BranchError` is raised.
        """
        _refuse_positional(positional)
        return cast(Branched, _caller(self).branch(which, inputs))

    async def abranch(
        self, which: type[module[Any, Branched]] | module[Any, Branched], /, *positional: Never, **inputs: Any
    ) -> Branched:
        """Run another module as a branch, on the event loop."""
        _refuse_positional(positional)
        return cast(Branched, await _caller(self).abranch(which, inputs))

    def branch_all(
        self,
        branches: Sequence[tuple[type[module[Any, Any]] | module[Any, Any], Mapping[str, Any]]],
        *,
        concurrency: int | None = None,
    ) -> list[Any]:
        """Run several branches concurrently, and return their outputs in order.

        A failed branch is a `BranchError` in the list.

            def on_step(self, step):
                first, second = self.branch_all([(ReviewBranch, {}), (ReviewBranch, {})], concurrency=2)

        Without `concurrency`, all branches run at the same time.
        """
        return _caller(self).branch_all(branches, concurrency)

    # Options of a call

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
        """Return a copy of the agent with other settings, or with options for its calls.

            run = agent.run(question="Who won in 1994?")
            agent.using(history=run)(question="And in 1990?")

        `history` is an earlier conversation to continue: a run or a list of messages. `deps` is an object for tools and
        hooks, such as a database connection.

        `run_id` is the id of the run in the store. A call with the same id and input resumes an interrupted run, or
        returns the output of a finished run.

        `thread` is the record or the events of a run to fork. The fork contains the steps before the step number
        `before` (the `iteration` of the events) and continues from there. If you call the fork without arguments, it
        uses the input of that run.

            agent.using(thread=run.thread, before=2, model="openai/gpt-4o")()

        `priority`, `not_before` and `deliver` are for `submit` and `map(..., queue=True)`. `not_before` is a time, or a
        delay after the call. With `deliver=False`, the run waits until its id is passed to `acorn.durable.perform`.
        """
        other = copy.copy(self)
        remove_overridden(vars(other), overrides)
        module.__init__(other, **overrides)
        arguments = {"history": history, "deps": deps, "run_id": run_id, "thread": thread, "before": before}
        arguments |= {"priority": priority, "not_before": not_before, "deliver": deliver}
        changes = {name: value for name, value in arguments.items() if value is not _UNSET}
        if changes:
            set_call_options(other, _caller(self).change_options(changes))
        if self.__acorn_open_sources__ is not None:
            set_private(other, "__acorn_open_sources__", self.__acorn_open_sources__.for_copy())
        return other

    @classmethod
    def override(cls, **overrides: Any) -> AbstractContextManager[None]:
        """Set settings for every instance of the class and its subclasses inside a block, for tests.

            with Researcher.override(model=AnyModel()):
                application()

        These settings have priority over the settings of instances and of `using`, but not over the settings of a step.
        They apply in the current context: in tasks and in `asyncio.to_thread`, but not in threads that you start.
        """
        return OverrideBlock(cls, overrides)

    # Hooks, for subclasses to define

    def on_start(self, step: Step[Deps]) -> Step[Deps] | None:
        """Called once in each run, before the first model request.

        `step.counter` is 0, and the step has no tool calls.

        def on_start(self, step):
            step.add_to_context({"today": "Monday"})
        """
        return step

    def on_step(self, step: Step[Deps]) -> Step[Deps] | None:
        """Called after each step, before the model receives the tool results.

        def on_step(self, step):
            for result in step.tool_results:
                result.output = str(result.output)[:5000]
        """
        return step

    def on_stream(self, chunk: StreamChunk[Out]) -> Any:
        """Called with each chunk of a response.

        If you define this hook, acorn streams the requests.

        def on_stream(self, chunk):
            print(chunk.content or "", end="")
        """
        return None

    def on_finish(self, output: Out) -> Any:
        """Called with each output before it is returned.

        If the hook raises `ValueError`, the model must correct the output.

            def on_finish(self, output):
                if not output.answer:
                    raise ValueError("answer must not be empty")

        A return value other than None replaces the output.
        """
        return None

    def on_human(self, request: Request) -> Any:
        """Called when the run or one of its branches requests human input.

        Return the answer, or None if no one can answer now. For an approval, return `acorn.approve()` or
        `acorn.deny("reason")`.

        def on_human(self, request):
            return input(request.question) or None
        """
        return None

    # The current or the last run

    @property
    def deps(self) -> Deps:
        """The object that was passed to `using(deps=...)`, for tools and hooks."""
        run: Run[Any, Deps] | None = run_of(self)
        deps: Deps = self.__acorn_call_options__.deps if run is None else run.deps
        return deps

    @property
    def history(self) -> list[Message]:
        """The message list of the current run inside tools and hooks, and of the last run elsewhere."""
        run = run_of(self) or last_run(self)
        return [] if run is None else run.history

    @history.setter
    def history(self, messages: list[Message]) -> None:
        run = run_of(self)
        if run is None:
            raise AttributeError(
                f"`history` of `{type(self).__name__}` can be set only in its hooks and tools. To start with an "
                f"earlier conversation, call `agent.using(history=messages)(...)`."
            )
        if not isinstance(messages, list):
            raise AcornError(
                f"`history` must be a list of messages, got `{type(messages).__name__}`. Assign a list of dicts."
            )
        run.history = messages

    @property
    def thread(self) -> list[AgentEvent]:
        """The events of the current run inside tools and hooks, and of the last run elsewhere."""
        run = run_of(self) or last_run(self)
        return [] if run is None else run.thread

    @property
    def last(self) -> Run[Out, Deps] | None:
        """The record of the last run that ended in this task, or else in this thread, even if it failed."""
        return last_run(self)


AgentBase.__acorn_module__ = module
Module = module
