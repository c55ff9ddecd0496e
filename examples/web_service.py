"""Web service: an agent in a FastAPI application with a sync, an async and a streaming endpoint.

    pip install fastapi uvicorn httpx
    python examples/web_service.py
    uvicorn --app-dir examples web_service:app
    acorn run examples/web_service.py --question "Who created Python?"

One agent instance serves all requests, because calls share no state. The endpoints use the Pydantic classes of the
agent. Therefore FastAPI rejects an invalid request before the agent calls a model, and `/docs` describes the service.

`python examples/web_service.py` needs no API key and no network, because it uses a scripted model and a test client.
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
    """Answer a question; FastAPI calls this function in a thread, and the agent blocks only this thread."""
    return agent(question)


@app.post("/ask-async")
async def ask_async(question: Question) -> Answer:
    """Answer a question on the event loop; if the task is cancelled, the model call is cancelled as well."""
    return await agent.acall(question)


@app.post("/ask-stream")
async def ask_stream(question: Question) -> StreamingResponse:
    """Stream the answer as server-sent events; if the client disconnects, the run ends."""

    async def events() -> AsyncIterator[str]:
        try:
            async for chunk in agent.astream(question):
                if chunk.result is not None:
                    yield f"event: done\ndata: {chunk.result.model_dump_json()}\n\n"
                elif chunk.partial is not None:
                    yield f"data: {chunk.partial.model_dump_json()}\n\n"
        except AcornError as error:  # The response has already started, so its status code can no longer change.
            log.error("%s", error)
            yield "event: failed\ndata: {}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.exception_handler(AcornError)
def failed(request: Request, error: AcornError) -> JSONResponse:
    """Log the error, and tell the client only whether another attempt may succeed."""
    log.error("%s", error)
    is_temporary = isinstance(error, ModelError) and error.retryable
    return JSONResponse({"detail": "try again later" if is_temporary else "no answer"}, 503 if is_temporary else 500)


def main() -> None:
    answer = finish(answer="Guido van Rossum.", confidence=0.9)
    client = TestClient(app)
    question = {"question": "Who created Python?"}
    with Ask.override(model=ScriptedModel([answer, answer, answer, Failure(status=503)])):
        print(client.post("/ask", json=question).json())
        print(client.post("/ask-async", json=question).json())
        print(client.post("/ask-stream", json=question).text.strip().splitlines()[-1])
        failure = client.post("/ask", json=question)
        print(failure.status_code, failure.json())
        print(client.post("/ask", json={"q": "?"}).status_code)


if __name__ == "__main__":
    main()
