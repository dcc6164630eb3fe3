"""The commands of `./broker`, in the environment that the bootstrap has made."""

import signal
import sys
from collections.abc import Callable
from types import FrameType

from broker_project.stack.testing import test

COMMANDS: dict[str, Callable[..., int]] = {"test": test}


def end(_signal: int, _frame: FrameType | None) -> None:
    """Leave by the way Ctrl-C goes, so that everything is stopped in order."""
    raise KeyboardInterrupt


def main(command: str, *arguments: str) -> int:
    """Run a command; return its exit status."""
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    if command not in COMMANDS:
        print(f"broker: there is no command {command!r}; ./broker help lists them", file=sys.stderr)
        return 2
    try:
        return COMMANDS[command](*arguments)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
