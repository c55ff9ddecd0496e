"""The answer is a Pydantic object, checked before you see it."""

from pydantic import BaseModel, Field

from acorn import module


class Passage(BaseModel):
    text: str


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, le=130)


class ReadPerson(module[Passage, Person]):
    """Extract the name and the age of the person."""

    model = "local/smollm2"


text = "Maria Lopez is 34 years old and works as a nurse in Lisbon."
person = ReadPerson()(text=text)
print(repr(person))
print(f"In ten years {person.name} will be {person.age + 10}.")
