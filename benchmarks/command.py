"""`./broker bench`: run scenarios, each on a fresh stack of its own, and print what they measured."""

import argparse
import contextlib
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.bench import Bench, Options
from benchmarks.figures import Figure, Outcome, rounded
from benchmarks.scenarios import horizon, mailbox, publish, queue, retries, scale, soak, summaries, topic
from broker_project.stack.folders import STATE, AlreadyRunning, StackFolder, locked
from broker_project.stack.load.management_client import Management
from broker_project.stack.running_stack import running_stack
from broker_project.stack.variables import forget_variables

FOLDER: Final = STATE / "bench"
DEFAULTS: Final = Options()
COLUMNS: Final = "{:<16} {:<34} {:>12} {:<8} {:>12}  {}"


SCENARIOS: Final[Mapping[str, Callable[[Bench], Outcome]]] = {
    "topic.dense": topic.run_dense,
    "topic.single": topic.run_single,
    "topic.keyed": topic.run_keyed,
    "topic.real": topic.run_real,
    "topic.latency": topic.run_latency,
    "topic.fanout": topic.run_fanout,
    "topic.hanging": topic.run_hanging,
    "topic.diverted": retries.run_diverted,
    "topic.retrying": retries.run,
    "topic.rejected": topic.run_rejected,
    "publish.single": publish.run_single,
    "publish.keyed": publish.run_keyed,
    "publish.steady": publish.run_steady,
    "publish.pipelined": publish.run_pipelined,
    "publish.fanout50": publish.run_fanout,
    "publish.sparse": publish.run_sparse,
    "queue.fast": queue.run_fast,
    "queue.slow": queue.run_slow,
    "sync": publish.run_sync,
    "matching": scale.run_matching,
    "scripts": topic.run_scripts,
    "mailbox.throughput": mailbox.run_throughput,
    "mailbox.polling": mailbox.run_polling,
    "mailbox.million": mailbox.run_million,
    "soak": soak.run,
    "horizon": horizon.run,
    "idle": scale.run_idle,
    "growth": scale.run_growth,
    "pages": scale.run_pages,
    "summaries": summaries.run,
}
ABOUT: Final = {name: (run.__doc__ or "").partition("\n")[0] for name, run in SCENARIOS.items()}
LONG: Final = (
    *("topic.retrying", "topic.rejected", "publish.keyed", "publish.pipelined", "publish.sparse"),
    *("mailbox.polling", "mailbox.million", "soak", "horizon", "idle", "growth", "pages", "summaries"),
)
"""Scenarios that run only when they are named."""


def main(*arguments: str) -> int:
    """Run a command line; return 0 unless a run is void or the broker did something wrong."""
    options = parser().parse_args(arguments)
    if options.list:
        print("\n".join(f"{name:<18} {about}" for name, about in ABOUT.items()))
        return 0
    forget_variables()  # the stack is measured as it comes, and without summaries in between
    os.environ["BROKER_SUMMARIES"] = "0"
    named = [name for names in options.scenarios for name in names]
    chosen = named or [name for name in SCENARIOS if name not in LONG]
    settings = Options(options.seconds, options.minutes, options.rate, int(options.attempts))
    outcomes = {name: _run(name, settings) for name in chosen}
    if options.json:
        rows = [row for name, outcome in outcomes.items() for row in json_rows(name, outcome.figures)]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    wrong = [(name, text) for name, outcome in outcomes.items() for text in (*outcome.problems, outcome.void) if text]
    for name, text in wrong:
        _say(f"{name}: {text}")
    return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="./broker bench", description="Measures the broker on this machine.")
    made.add_argument("scenarios", nargs="*", metavar="scenario", type=_scenarios, help="default: all short ones")
    made.add_argument("--list", action="store_true", help="list the scenarios")
    made.add_argument("--json", type=_file, metavar="FILE", help="also write the figures there")
    numbers = {
        "seconds": "how long to measure each",
        "minutes": "how long the soak takes (30), or horizon holds a snapshot",
        "rate": "deliveries a second of the soak, or of horizon",
        "attempts": "attempts that the summaries are made of",
    }
    for name, about in numbers.items():
        made.add_argument(f"--{name}", type=_positive, default=getattr(DEFAULTS, name), metavar="N", help=about)
    return made


def _scenarios(name: str) -> list[str]:
    """Return the scenario with this name, or all whose names start with it and a dot."""
    found = [known for known in SCENARIOS if known == name or known.startswith(f"{name}.")]
    if not found:
        raise argparse.ArgumentTypeError(f"there is no scenario {name!r}; there are {', '.join(SCENARIOS)}")
    return found


def _file(name: str) -> Path:
    """Return a path after checking that it can be written, before a run of half an hour."""
    try:
        Path(name).open("a").close()
    except OSError as problem:
        raise argparse.ArgumentTypeError(f"{name} cannot be written: {problem.strerror}") from None
    return Path(name)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def json_rows(scenario: str, figures: Sequence[Figure]) -> list[dict[str, object]]:
    """Return figures as `--json` writes them."""
    return [
        {"scenario": scenario, "figure": one.name, "value": one.value, "unit": one.unit, "bare": one.bare}
        for one in figures
    ]


def _run(name: str, options: Options) -> Outcome:
    _say(f"{name}: {ABOUT[name]}")
    try:
        with running_stack(FOLDER, fresh=True, say=_say) as stack:
            bench = Bench(stack, Management.of(stack), options, _say)
            outcome = SCENARIOS[name](bench)
            outcome = replace(outcome, problems=[*outcome.problems, *bench.ended()])
    finally:
        with contextlib.suppress(AlreadyRunning), locked(StackFolder(FOLDER).lock):  # never the data of another run
            shutil.rmtree(FOLDER / "postgres", ignore_errors=True)
    print(COLUMNS.format("scenario", "figure", "value", "unit", "bare", "").rstrip())
    for figure in outcome.figures:
        bare = "" if figure.bare is None else rounded(figure.bare)
        columns = (name, figure.name, rounded(figure.value), figure.unit, bare, figure.verdict())
        print(COLUMNS.format(*columns).rstrip(), flush=True)
    return outcome


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
