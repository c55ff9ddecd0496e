"""An agent that accepts media and describes it."""

from pydantic import BaseModel

from acorn import Audio, File, Image, module
from acorn._formats.json import text_of
from acorn.models import ModelRequest
from acorn.testing import Reply, ScriptedModel, finish


class Page(BaseModel):
    scan: Image
    number: int = 1


class Look(BaseModel):
    photo: Image
    song: Audio | None = None
    papers: list[Image | File] = []
    page: Page | None = None


def answer(request: ModelRequest) -> Reply:
    return finish(saw=text_of(request.messages[-1]["content"]))


class Looker(module):
    """Says what it was given."""

    model = ScriptedModel(answer)
    initial_input = Look
    final_output = ["saw"]
