"""`python -m benchmarks`, as `./broker bench` runs it."""

import sys

from benchmarks.command import main
from broker_project.stack.command_line import run

if __name__ == "__main__":
    sys.exit(run(main, *sys.argv[1:]))
