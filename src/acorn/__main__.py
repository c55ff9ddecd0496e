"""`python -m acorn`: the command line without its script."""

import sys

from acorn.cli import main

if __name__ == "__main__":
    sys.exit(main())
