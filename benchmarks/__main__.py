"""`python -m benchmarks`, as `./broker bench` runs it."""

import sys

from benchmarks.command import main
from broker_project.stack.up import run_command

if __name__ == "__main__":
    sys.exit(run_command(main, *sys.argv[1:]))
