"""A well-behaved client of a mailbox in a process of its own, which can be killed.

Run as a module with the broker's address, the subscriber's name, the key's token, the client's name, the path of its
log and the mailbox's time-out.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from broker_client import Mailbox
from broker_project.stack.folders import ROOT
from broker_project.stack.services import python
from tests.faults.hand_outs import Asked, Handed, Record, Said
from tests.faults.mailbox_clients import Client
from tests.faults.mailbox_manners import unhurriedly


def started(web: str, subscriber: str, token: str, name: str, path: Path, ack_seconds: int) -> subprocess.Popen[bytes]:
    """Let it fetch from now on."""
    arguments = (web, subscriber, token, name, str(path), str(ack_seconds))
    return subprocess.Popen(python(__name__, *arguments), cwd=ROOT)


def read(path: Path) -> list[Record]:
    """Return what a client in a process of its own wrote down, but for a last unfinished line."""
    complete, _, _ = path.read_text().rpartition("\n")
    return [_record(json.loads(line)) for line in complete.splitlines()]


def _record(fields: dict[str, Any]) -> Record:
    kind = Handed if "number" in fields else Said if "status" in fields else Asked
    return kind(**fields)


def main(web: str, subscriber: str, token: str, name: str, path: str, ack_seconds: str) -> None:
    with Path(path).open("a", buffering=1) as log:

        def write(record: Record) -> None:
            log.write(json.dumps(asdict(record)) + "\n")

        Client(name, Mailbox(web, subscriber, token), unhurriedly, write, int(ack_seconds)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
