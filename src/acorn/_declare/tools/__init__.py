"""Tools: the `@tool` decorator, collecting, schemas, and binding the arguments of a model to a call."""
