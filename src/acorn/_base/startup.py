"""Ctrl-C while the command line is loading: the process ends at once, without a word.

`acorn` and `python -m acorn` load the whole library before their own code runs, and an interrupted import is a
traceback. So this is the first room that `import acorn` enters. In any other program it does nothing; the command
line takes Ctrl-C over from it.
"""

import os
import sys

INTERRUPTED = 130


def is_command_line() -> bool:
    """Whether this process is `acorn` or `python -m acorn`, and not a program that uses the library."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    if name == "-m":  # as long as Python looks for the module
        words = sys.orig_argv[1:]
        at = next((at for at, word in enumerate(words) if word[:1] == "-" and word[-1:] == "m"), -1)
        return words[at + 1 : at + 2] == ["acorn"] if at >= 0 else "-macorn" in words
    if os.path.splitext(os.path.basename(name))[0] != "acorn":
        return False
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return "acorn.cli" in frame.f_code.co_names  # the script that was installed, not one that happens to have the name


def end_when_interrupted() -> None:
    """From here on, Ctrl-C ends the process; where it is ignored, it stays so."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_when_interrupted() -> None:
    """Ctrl-C is an exception again, for whoever is ready to catch it."""
    import signal

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os._exit(INTERRUPTED)


try:
    if is_command_line():
        end_when_interrupted()
except KeyboardInterrupt:
    os._exit(INTERRUPTED)
