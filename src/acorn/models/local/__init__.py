"""Embedded language models, which run in this process and need neither an API key nor a network connection."""
