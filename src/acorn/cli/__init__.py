"""The command line: `acorn run`, `acorn new` and the others.

It uses the library as any user would. A command is a file in `commands/` and a row in `app.COMMANDS`.
"""

import sys

try:
    from acorn.cli.app import main
except KeyboardInterrupt:  # loading takes a moment, and Ctrl-C in it is no error either
    sys.exit(130)

__all__ = ["main"]
