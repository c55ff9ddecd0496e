"""Tools: the `@tool` decorator, the collection of a module's tools, their schemas, and their call arguments."""
