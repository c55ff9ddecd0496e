"""Runs in a PostgreSQL database."""
