"""`./broker histories`: random histories one after the other, until one breaks a promise."""

import argparse
import logging
import os
import sys
import time

import django
from django.core.management import call_command

from broker_project.stack.test_command import prepared
from broker_project.stack.up import run_command

SEEDS = 5_000
PROGRESS_SECONDS = 10.0


def histories(*arguments: str) -> int:
    """Run the histories of some seeds on temporary servers; return 0 if every promise was kept."""
    made = argparse.ArgumentParser("./broker histories", description="Let two workers live through random histories.")
    made.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"how many; otherwise {SEEDS}")
    made.add_argument("--from", dest="start", type=int, default=0, metavar="S", help="the first seed")
    made.add_argument("--seed", type=int, metavar="S", help="only this one, to repeat its history")
    options = made.parse_args(arguments)
    seeds = range(options.start, options.start + options.seeds)
    with prepared() as (_, variables):
        os.environ.update(variables)
        django.setup()
        logging.disable()
        call_command("migrate", verbosity=0)
        return run(seeds if options.seed is None else range(options.seed, options.seed + 1))


def run(seeds: range) -> int:
    """Run their histories; print how far it is, and the first one that breaks a promise."""
    from tests.histories.history import run_history  # noqa: PLC0415 - models need settings
    from tests.histories.world import prepared_world  # noqa: PLC0415

    with prepared_world() as world:
        began = said = time.perf_counter()
        for number, seed in enumerate(seeds, 1):
            if broken := run_history(world, seed):
                print(
                    f"{broken}\nA promise is broken in history {number}. To repeat it: ./broker histories --seed {seed}"
                )
                return 1
            now = time.perf_counter()
            if now >= said + PROGRESS_SECONDS or number == len(seeds):
                print(f"{number} of {len(seeds)} histories, {number / (now - began):.1f} a second", flush=True)
                said = now
    return 0


if __name__ == "__main__":
    sys.exit(run_command(histories, *sys.argv[1:]))
