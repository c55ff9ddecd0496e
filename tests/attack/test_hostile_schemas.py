"""Attacks with regular expressions in JSON Schemas that need exponential time in Python's `re` module.

`re` holds Python's global lock, so each attack runs in a process of its own, which the test can stop.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.cases import each_case
from tests.waiting import PATIENCE

SERVER = """
import json, sys

SLOW = "^(a+)+$"
ECHO = {"type": "object", "properties": {"text": {"type": "string", "pattern": SLOW}}, "additionalProperties": True}
NAMED = {"type": "object", "properties": {}, "patternProperties": {SLOW: {"type": "string"}},
         "additionalProperties": {"type": "string"}, "unevaluatedProperties": False}
# The inner `$schema` would make the package `jsonschema` use its own classes.
INNER = {"type": "object", "properties": {"text": {
    "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "string", "pattern": SLOW}}}
ANY = {"type": "object", "properties": {}, "additionalProperties": True}
LONG = {"type": "object", "properties": {"text": {"type": "string", "pattern": "[" * 50_000}}}
tools = [
    {"name": "echo", "inputSchema": ECHO}, {"name": "named", "inputSchema": NAMED},
    {"name": "inner", "inputSchema": INNER},
    {"name": "result", "inputSchema": ANY, "outputSchema": ECHO}, {"name": "form", "inputSchema": ANY},
]

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

waiting = None
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params", {})
    if method == "initialize":
        version = params["protocolVersion"]
        send(id=message["id"], result={"protocolVersion": version, "capabilities": {"tools": {}},
                                       "serverInfo": {"name": "hostile", "version": "1"}})
    elif method == "tools/list":
        send(id=message["id"], result={"tools": tools})
    elif method == "tools/call" and params["name"] == "form":
        waiting = message["id"]
        send(id="form", method="elicitation/create", params={"message": "?", "requestedSchema": ECHO})
    elif method == "tools/call":
        text = "a" * 60 + "!"
        send(id=message["id"], result={"content": [{"type": "text", "text": "called"}],
                                       "structuredContent": {"text": text}})
    elif message.get("id") == "form":
        text = json.dumps(message.get("result", message.get("error")))
        send(id=waiting, result={"content": [{"type": "text", "text": text}]})
    elif "id" in message:
        send(id=message["id"], error={"code": -32601, "message": "unknown"})
"""

PROGRAM = """
import sys
from acorn import module
from acorn.mcp import MCPServer
from acorn.testing import ScriptedModel, call, finish

TEXT = "a" * 60 + "!"

class Worker(module[str, str]):
    '''Use the tools.'''
    max_steps = 3

    def on_human(self, request):
        return {"text": TEXT}

server = MCPServer(sys.executable, [sys.argv[1]])
name = sys.argv[2]
arguments = {"named": {TEXT: "x"}, "echo": {"text": TEXT}, "inner": {"text": TEXT}}.get(name, {})
run = Worker(model=ScriptedModel([call(name, **arguments), finish("done")]), tools=[server]).run("x")
print([m["content"] for m in run.history if m["role"] == "tool"])
"""


def run_program(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@each_case(
    ("tool", "expected"),
    [
        ("echo", "argument `text` must be a string matching ^(a+)+$"),
        ("named", "aaa!"),
        ("inner", "argument `text` must be a string matching ^(a+)+$"),
        ("result", "invalid structured content"),
        ("form", "argument `text` must be a string matching ^(a+)+$"),
    ],
)
def test_exponential_pattern_of_mcp_server_is_checked_in_linear_time(tmp_path: Path, tool: str, expected: str) -> None:
    server = tmp_path / "server.py"
    server.write_text(SERVER, encoding="utf-8")
    assert expected in run_program(PROGRAM, str(server), tool)


PREMADE = """
import sys
from acorn import module, tool
from acorn.models.local.grammar.build import GrammarLimits, grammar
from acorn.testing import AnyModel, ScriptedModel, call, finish

SLOW = {"exponential": "^(a+)+$", "lookahead": "^(?=(a+)+$)a", "copies": "(a)" + "".join(
    f"(\\\\{n}\\\\{n})" for n in range(1, 90)), "brackets": "[" * 1900, "wide": "(?i)" + "[\\0-\\U0010ffff]" * 300}
TEXT = "a" * 60 + "!"

def echo(**arguments):
    return "called"

for name, pattern in SLOW.items():
    for schema in (
        {"type": "object", "properties": {"text": {"type": "string", "pattern": pattern, "minLength": 40}}},
        {"type": "object", "properties": {}, "patternProperties": {pattern: True}, "additionalProperties": False},
    ):
        try:
            class Agent(module[str, str]):
                '''Use the tool.'''
                max_steps = 2
                tools = [tool(schema=schema)(echo)]
        except Exception as error:
            print(name, type(error).__name__)
            continue

        arguments = {"text": TEXT} if schema["properties"] else {TEXT: 1}
        run = Agent(model=ScriptedModel([call("echo", **arguments), finish("done")])).run("x")
        print(name, [m["content"] for m in run.history if m["role"] == "tool"])
        Agent(model=AnyModel()).run("x")
        try:
            grammar({"echo": schema}, GrammarLimits())
        except ValueError as error:  # No text fits.
            print(name, type(error).__name__)
"""


def test_exponential_pattern_in_premade_schema_does_not_stop_process() -> None:
    output = run_program(PREMADE)
    assert output.count("exponential ['Tool error: ") == 2, output
    assert "lookahead ['called', 'Finished.']" in output
