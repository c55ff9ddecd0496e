"""Grammars that restrict the output of a local model to JSON that is valid for a schema.

The grammars have the GBNF notation of llama.cpp. The modules of this folder perform no I/O.
"""
