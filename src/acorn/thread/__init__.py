"""The thread of a run: a list of events that you can save as JSON, convert to messages, or write as XML.

from acorn.thread import serialize_thread_to_xml

run = agent.run(question="What is 2+2?")
print(serialize_thread_to_xml(run.thread))
"""

from acorn._formats.xml.encode import escape_xml
from acorn.thread.events import (
    AgentEvent,
    CompletionEvent,
    ErrorEvent,
    HumanInputReceivedEvent,
    HumanInputRequestedEvent,
    MessageEvent,
    SummaryEvent,
    ToolCallEvent,
    ToolResultEvent,
    dump_events,
    parse_events,
)
from acorn.thread.messages import from_messages, to_messages
from acorn.thread.xml import parse_thread_xml, serialize_thread_to_xml

__all__ = [
    "AgentEvent",
    "MessageEvent",
    "ToolCallEvent",
    "ToolResultEvent",
    "ErrorEvent",
    "HumanInputRequestedEvent",
    "HumanInputReceivedEvent",
    "CompletionEvent",
    "SummaryEvent",
    "parse_events",
    "dump_events",
    "serialize_thread_to_xml",
    "escape_xml",
    "parse_thread_xml",
    "to_messages",
    "from_messages",
]
