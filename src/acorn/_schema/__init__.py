"""Schemas: what goes in, what comes out, and how to speak of both in words."""
