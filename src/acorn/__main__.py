"""The command line as a module: `python -m acorn`."""

import sys

from acorn.cli import main

if __name__ == "__main__":
    sys.exit(main())
