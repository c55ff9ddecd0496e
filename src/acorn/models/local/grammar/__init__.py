"""Grammars that hold a model to a JSON schema: the schema as llama.cpp's GBNF. Pure."""
