"""The store in a PostgreSQL database, which needs the Python package psycopg."""

from acorn.errors import StoreError

try:
    import psycopg as psycopg
except ImportError as error:
    raise StoreError(
        f"A PostgreSQL store needs the extra `postgres`. Install it: pip install 'acorn-agents[postgres]' ({error})."
    ) from error
