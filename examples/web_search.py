"""Web search: an agent with a hosted tool, which Anthropic runs, and a Python tool, which saves the results.

    python examples/web_search.py

A small local HTTP server simulates Anthropic, so that the program can print the request bodies. Add `--real` and set
`ANTHROPIC_API_KEY` to send the requests to Anthropic.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from acorn import module, tool

NOTES: list[str] = []


@tool
def take_note(text: str) -> str:
    """Keep a sentence for later.

    Args:
        text: The sentence
    """
    NOTES.append(text)
    return "kept"


class Newsroom(module[str, str]):
    """Search the web, take a note of what you found, then answer in one sentence."""

    tools = [take_note, {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]
    max_steps = 5


FOUND = {"type": "web_search_result", "url": "https://example.org/oaks", "title": "Oaks", "encrypted_content": "Eo8B"}
ANSWERS: list[list[dict[str, Any]]] = [
    [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "old oaks"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]},
        {"type": "text", "text": "There is an oak of a thousand years."},
        {"type": "tool_use", "id": "toolu_1", "name": "take_note", "input": {"text": "An oak, 1000 years old."}},
    ],
    [{"type": "tool_use", "id": "toolu_2", "name": "__finish__", "input": {"result": "The oldest oak is 1000."}}],
]
SENT: list[dict[str, Any]] = []


class StandIn(BaseHTTPRequestHandler):
    """An HTTP handler that records the requests and returns responses in the format of Anthropic."""

    def do_POST(self) -> None:
        SENT.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        answer = {"type": "message", "role": "assistant", "model": "stand-in", "stop_reason": "tool_use"}
        counted = {"usage": {"input_tokens": 50, "output_tokens": 10}}
        body = json.dumps({**answer, **counted, "content": ANSWERS[len(SENT) - 1]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""


def main() -> None:
    if "--real" in sys.argv:
        print(Newsroom(model="anthropic/claude-sonnet-4-5")("How old is the oldest oak?"))
        print("Notes:", *NOTES, sep="\n  ")
        return
    with HTTPServer(("127.0.0.1", 0), StandIn) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        run = Newsroom(model={"model": "anthropic/claude-sonnet-4-5", "base_url": address}).run("How old?")
        server.shutdown()
    print("The tools in the first request:")
    for sent_tool in SENT[0]["tools"]:
        print(f"   {sent_tool['name']}: {sent_tool['type']}")
    print("\nThe model's response in the second request, including the search results of the provider:")
    for block in SENT[1]["messages"][1]["content"]:
        print(f"   {json.dumps(block)[:100]}")
    print(f"\n{run.output}\nNotes: {NOTES}")


if __name__ == "__main__":
    main()
