"""Grammars in llama.cpp's GBNF notation that restrict the output of a model to a JSON schema.

The modules of this folder perform no I/O.
"""
