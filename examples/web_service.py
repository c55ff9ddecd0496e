"""An agent inside FastAPI: a sync endpoint, an async one, and one that streams.

    pip install fastapi uvicorn httpx
    python examples/web_service.py
    uvicorn --app-dir examples web_service:app
    acorn run examples/web_service.py --question "Who created Python?"

One instance serves all requests: calls do not leak into each other. The agent's schemas are those of the endpoints, so
a wrong request is refused before any model is asked, and the service describes itself at `/docs`.

By itself it needs no key and no network: the model is then a script, and the requests are made by a test client.
"""

import logging
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.testclient import TestClient
from pydantic import BaseModel, Field

from acorn import AcornError, ModelError, module
from acorn.testing import Failure, ScriptedModel, finish


class Question(BaseModel):
    question: str = Field(max_length=1000)


class Answer(BaseModel):
    answer: str
    confidence: float = Field(ge=0, le=1)


class Ask(module[Question, Answer]):
    """Answer in a sentence."""

    model = "openai/gpt-4o"
    max_seconds = 60
    max_concurrency = 20


agent = Ask()
app = FastAPI()
log = logging.getLogger("service")


@app.post("/ask")
def ask(question: Question) -> Answer:
    """An ordinary function: FastAPI calls it in a thread, and the agent blocks that thread only."""
    return agent(question)


@app.post("/ask-async")
async def ask_async(question: Question) -> Answer:
    """On the event loop. If the task is cancelled, so is the model call."""
    return await agent.acall(question)


@app.post("/ask-stream")
async def ask_stream(question: Question) -> StreamingResponse:
    """The answer while it is written, as server-sent events. A client that goes away ends the run."""

    async def events() -> AsyncIterator[str]:
        try:
            async for chunk in agent.astream(question):
                if chunk.result is not None:
                    yield f"event: done\ndata: {chunk.result.model_dump_json()}\n\n"
                elif chunk.partial is not None:
                    yield f"data: {chunk.partial.model_dump_json()}\n\n"
        except AcornError as error:  # the response has begun, so its status cannot say it any more
            log.error("%s", error)
            yield "event: failed\ndata: {}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.exception_handler(AcornError)
def failed(request: Request, error: AcornError) -> JSONResponse:
    """What went wrong stays in the log; the client reads whether to try again."""
    log.error("%s", error)
    may_help = isinstance(error, ModelError) and error.retryable
    return JSONResponse({"detail": "try again later" if may_help else "no answer"}, 503 if may_help else 500)


def main() -> None:
    said = finish(answer="Guido van Rossum.", confidence=0.9)
    client = TestClient(app)
    question = {"question": "Who created Python?"}
    with Ask.override(model=ScriptedModel([said, said, said, Failure(status=503)])):
        print(client.post("/ask", json=question).json())
        print(client.post("/ask-async", json=question).json())
        print(client.post("/ask-stream", json=question).text.strip().splitlines()[-1])
        failure = client.post("/ask", json=question)
        print(failure.status_code, failure.json())
        print(client.post("/ask", json={"q": "?"}).status_code)


if __name__ == "__main__":
    main()
