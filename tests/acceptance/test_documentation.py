"""The shell examples of the documentation, run as they stand on a real broker after the tutorial's second step."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from broker_project.stack.load.receiver import Receiver, answer, running_receiver
from broker_project.stack.load.wait import wait_until
from tests.support.real_broker import TIMEOUT_SECONDS, Broker

pytestmark = pytest.mark.faults

DOCS: Final = Path(__file__).parents[2] / "docs"
SHELL: Final = """
set -euo pipefail
curl() { command curl --fail-with-body --silent --show-error "$@"; }
"""
ENDPOINT: Final = re.compile(r"https?://(?:[\w.-]+\.example\.org|127\.0\.0\.1:9000)")


def blocks(page: str, language: str) -> list[str]:
    """Return the examples of a page in one language."""
    return re.findall(rf"```{language}\n(.+?)```", (DOCS / page).read_text(), re.DOTALL)


def set_up() -> tuple[str, str]:
    """Return how the tutorial defines `create`, and what it creates, without the keys that a test has already."""
    first, second, *_ = (text for text in blocks("tutorial/first-webhook.md", "sh") if "create" in text)
    lines = [line for line in first.splitlines() if line.startswith("create")]
    (definition,) = (line for line in lines if line.startswith("create()"))
    return definition, "\n".join([*(line for line in lines if line != definition), second])


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who has taken the tutorial's second step, and types what a page says."""

    environment: dict[str, str]
    receiver: Receiver

    def types(self, example: str, **variables: str) -> str:
        """Run an example, with the receiver in the place of all endpoints; return what it prints."""
        definition, _ = set_up()
        script = SHELL + definition + "\n" + ENDPOINT.sub(self.receiver.url(""), example)
        environment = {**os.environ, **self.environment, **variables}
        done = subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{example}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def reader(broker: Broker) -> Iterator[Reader]:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    with running_receiver() as receiver:
        for path in ("/orders", "/urgent", "/jobs", "/printed", "/ask"):
            receiver.on(path, answer(204))
        environment = {"BROKER": broker.web, "ADMIN_KEY": broker.management.token}
        Reader(environment, receiver).types(set_up()[1])
        yield Reader({**environment, "KEY": broker.management.key("PUBLISHER", "shop")}, receiver)
        made = {one["name"] for one in broker.get("subscribers", limit="200")["items"]}
        for name in made & {"warehouse", "printer-1", "printer-2"}:
            broker.management.send("POST", f"subscribers/{name}/inactivate")


def test_publishing(reader: Reader) -> None:
    single, dry_run, batch = blocks("reference/publishing.md", "sh")
    (promised,) = re.findall(r"The answer `202 (\{.+?\})`", (DOCS / "reference/publishing.md").read_text())
    answered = json.loads(reader.types(single).rpartition("\n")[2])
    assert answered | {"id": 0} == json.loads(promised) | {"id": 0}
    would_get_it = json.loads(reader.types(dry_run).rpartition("\n")[2])
    assert (would_get_it["outcome"], would_get_it["counts"]["RECEIVES"]) == ("ROUTED", 1)
    results = json.loads(reader.types(batch).rpartition("\n")[2])["results"]
    assert [one["outcome"] for one in results] == ["ROUTED", "UNROUTED"]


def test_filters(reader: Reader) -> None:
    subscription, trial = blocks("reference/filters.md", "sh")
    assert json.loads(reader.types(subscription))["subscriber"] == "warehouse"
    shown, _ = blocks("reference/filters.md", "json")
    assert json.loads(reader.types(trial)) == json.loads(shown)


def test_queues(reader: Reader) -> None:
    creation, job, reply = blocks("reference/queues.md", "sh")
    reader.types(creation)
    assert '"deliveries":2' in reader.types(job)

    def addresses() -> list[str]:
        return [one.headers["callbackurl"] for one in reader.receiver.log if one.path == "/jobs"]

    wait_until(addresses, TIMEOUT_SECONDS)
    reader.types(reply, CALLBACK_URL=addresses()[0])
    wait_until(lambda: reader.receiver.bodies("/printed") == [b'{"printed": true}'], TIMEOUT_SECONDS)
    assert '"deliveries":2' in reader.types(blocks("reference/callbacks.md", "sh")[0])


def test_dead_letters(reader: Reader) -> None:
    (example,) = blocks("how-to/handle-dead-letters.md", "sh")
    assert "items" in reader.types(example)


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("how-to/find-messages.md", '"items":'),
        ("reference/cloudevents.md", "202 Accepted"),
        ("reference/sync.md", "broker-outcome: answered"),
        ("reference/volatile.md", '"durability":"volatile"'),
    ],
)
def test_other_pages(reader: Reader, page: str, printed: str) -> None:
    example, *_ = blocks(page, "sh")
    assert printed in reader.types(example)
