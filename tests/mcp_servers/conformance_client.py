"""A client for the runner of MCP's conformance scenarios: `python conformance_client.py ADDRESS`.

The runner serves the scenario that it names in the environment, starts this program, and checks its requests.
"""

from __future__ import annotations

import os
import sys

from acorn import Request, module
from acorn.mcp import MCPServer
from acorn.testing import ScriptedModel, call, finish

CALLS = {
    "tools_call": call("add_numbers", a=5, b=3),
    "elicitation-sep1034-client-defaults": call("test_client_elicitation_defaults"),
}


class Client(module[None, str]):
    """Use the tool."""

    max_steps = 3

    def on_human(self, request: Request) -> dict[str, object]:
        return {}


def main() -> None:
    model = ScriptedModel([CALLS[os.environ["MCP_CONFORMANCE_SCENARIO"]], finish("done")])
    run = Client(model=model, tools=[MCPServer(sys.argv[1])]).run()
    result = next(str(message["content"]) for message in run.history if message["role"] == "tool")
    if result.startswith("Tool error"):
        sys.exit(result)


if __name__ == "__main__":
    main()
