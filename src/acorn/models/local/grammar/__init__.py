"""Grammars in llama.cpp's GBNF notation that restrict a model to a JSON schema. Nothing here performs I/O."""
