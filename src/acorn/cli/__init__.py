"""The command-line program `acorn`.

To add a command, write a function in `commands/` and add a row to the table `COMMANDS` in `app.py`.
"""

from acorn.cli.app import main

__all__ = ["main"]
