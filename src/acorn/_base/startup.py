"""Handling of Ctrl-C while the command line is loading: the process ends immediately, without a traceback.

The commands `acorn` and `python -m acorn` load the whole library before the code of the command line runs, and an
interrupted import would print a traceback. Therefore `import acorn` imports this file first. In any other program, this
file does nothing. The command line installs its own handling of Ctrl-C when it is ready.
"""

import os
import sys

INTERRUPTED = 130
"""The exit code of a process that Ctrl-C ended."""


def is_command_line() -> bool:
    """Return True if this process is the command `acorn` or `python -m acorn`, and False for any other program."""
    name = sys.argv[0] if getattr(sys, "argv", None) else ""
    if name == "-m":  # Python sets this value while it looks for the module.
        arguments = sys.orig_argv[1:]
        index = next((index for index, text in enumerate(arguments) if text[:1] == "-" and text[-1:] == "m"), -1)
        return arguments[index + 1 : index + 2] == ["acorn"] if index >= 0 else "-macorn" in arguments
    if os.path.splitext(os.path.basename(name))[0] != "acorn":
        return False
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage] - Python documents it, and `inspect` is slow to load.
    while frame.f_back is not None:
        frame = frame.f_back
    return "acorn.cli" in frame.f_code.co_names  # Another script may have the same name.


def exit_on_interrupt() -> None:
    """Make Ctrl-C end the process immediately, unless the process handles or ignores Ctrl-C in another way."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Undo `exit_on_interrupt`, so that Ctrl-C raises `KeyboardInterrupt` again."""
    import signal

    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(*_: object) -> None:
    os._exit(INTERRUPTED)


try:
    if is_command_line():
        exit_on_interrupt()
except KeyboardInterrupt:
    os._exit(INTERRUPTED)
