"""The command line: `acorn run`, `acorn new` and the other commands.

A command is a function in `commands/` and a row in `app.COMMANDS`.
"""

from acorn.cli.app import main

__all__ = ["main"]
