"""The command line: `acorn run`, `acorn new` and the others.

It uses the library as any user would. A command is a file in `commands/` and a row in `app.COMMANDS`.
"""

from acorn.cli.app import main

__all__ = ["main"]
