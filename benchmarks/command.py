"""`./broker bench`: run scenarios, each on a fresh stack of its own, and print what they measured."""

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.bench import Bench, Options
from benchmarks.figures import Figure, Outcome, rounded
from benchmarks.scenarios import latency, mailbox, queue, retries, scale, soak, summaries, topic
from broker_project.stack.folders import STATE
from broker_project.stack.load.management_client import Management
from broker_project.stack.running_stack import running_stack

FOLDER: Final = STATE / "bench"
DEFAULTS: Final = Options()
COLUMNS: Final = "{:<16} {:<34} {:>12} {:<8} {:>12}  {}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario, and its line in `--list`."""

    run: Callable[[Bench], Outcome]
    about: str
    is_long: bool = False
    """Whether it runs only when it is named."""


SCENARIOS: Final = {
    "topic.dense": Scenario(
        topic.run_dense, "100 subscribers with an event type each, batches of 100 as fast as they go"
    ),
    "topic.single": Scenario(topic.run_single, "one subscriber, batches of 100 as fast as they go"),
    "topic.latency": Scenario(topic.run_latency, "200 single publishes a second over 20 subscribers"),
    "topic.fanout": Scenario(topic.run_fanout, "one message to 1,000 subscribers, ten times"),
    "topic.hanging": Scenario(
        topic.run_hanging, "100 single publishes a second over 300 subscribers of which 50 never answer"
    ),
    "topic.retrying": Scenario(
        retries.run, "as topic.dense, beside 100,000 deliveries in retry lanes: none, waiting, due", is_long=True
    ),
    "topic.rejected": Scenario(
        topic.run_rejected, "as topic.dense, alternately to endpoints that answer 204 and 404", is_long=True
    ),
    "queue.fast": Scenario(queue.run_fast, "a QUEUE with three endpoints, batches of 100 as fast as they go"),
    "queue.slow": Scenario(
        queue.run_slow, "a QUEUE with three endpoints that take 100 ms each, more jobs than may be in flight"
    ),
    "sync": Scenario(
        latency.run_sync, "100 SYNC calls a second, alternating with the same calls to the endpoint itself"
    ),
    "matching": Scenario(
        lambda bench: scale.run_matching(bench.stack.environment, bench.say),
        "10, 1,000 and 10,000 filtered subscriptions of which 5 match each message",
    ),
    "scripts": Scenario(
        latency.run_scripts, "100 single publishes a second over 100 subscribers beside 50 endless scripts"
    ),
    "mailbox.throughput": Scenario(
        mailbox.run_throughput, "a mailbox with four consumers that fetch ten messages a call, as fast as they go"
    ),
    "mailbox.polling": Scenario(
        mailbox.run_polling,
        "50 single publishes a second to a mailbox for which no, 48 and 200 clients wait",
        is_long=True,
    ),
    "mailbox.million": Scenario(
        mailbox.run_million, "a mailbox with a million messages and four consumers", is_long=True
    ),
    "soak": Scenario(soak.run, "half of what topic.dense can do, for --minutes; memory and hot tables", is_long=True),
    "growth": Scenario(
        lambda bench: scale.run_growth(bench.stack.environment, bench.say),
        "10 million finished deliveries beside those in flight",
        is_long=True,
    ),
    "summaries": Scenario(
        summaries.run, "--attempts summarized by Spark and by PostgreSQL alone, and beside deliveries", is_long=True
    ),
}


def main(*arguments: str) -> int:
    """Run a command line; return 0 unless a run is void or the broker did something wrong."""
    options = parser().parse_args(arguments)
    if options.list:
        print("\n".join(f"{name:<16} {scenario.about}" for name, scenario in SCENARIOS.items()))
        return 0
    # The stack is measured as it comes, with its own stores and without summaries in between.
    for name in [name for name in os.environ if name.startswith(("BROKER_", "DATABASE_URL", "REDIS_URL"))]:
        del os.environ[name]
    os.environ["BROKER_SUMMARIES"] = "0"
    named = [name for names in options.scenarios for name in names]
    chosen = named or [name for name, scenario in SCENARIOS.items() if not scenario.is_long]
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
        "minutes": "how long the soak takes",
        "rate": "deliveries a second of the soak",
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
    _say(f"{name}: {SCENARIOS[name].about}")
    try:
        with running_stack(FOLDER, fresh=True, say=_say) as stack:
            bench = Bench(stack, Management.of(stack), options, _say)
            outcome = SCENARIOS[name].run(bench)
            outcome = replace(outcome, problems=[*outcome.problems, *bench.ended()])
    finally:
        shutil.rmtree(FOLDER / "postgres", ignore_errors=True)
    print(COLUMNS.format("scenario", "figure", "value", "unit", "bare", "").rstrip())
    for figure in outcome.figures:
        bare = "" if figure.bare is None else rounded(figure.bare)
        columns = (name, figure.name, rounded(figure.value), figure.unit, bare, figure.verdict())
        print(COLUMNS.format(*columns).rstrip(), flush=True)
    return outcome


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
