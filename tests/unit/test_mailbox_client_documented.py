"""Run the programs of docs/how-to/use-the-mailbox-client.md as they stand, except for the address and the key."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.played_mailbox import PlayedMailbox
from tests.playing_mailbox import TOKEN
from tests.receiver import PATIENCE

ROOT = Path(__file__).parents[2]
READING, CALLING = re.findall(
    r"```python\n(.+?)```", (ROOT / "docs" / "how-to" / "use-the-mailbox-client.md").read_text(), re.DOTALL
)


def started(program: str, played: PlayedMailbox) -> subprocess.Popen[str]:
    told = program.replace("http://127.0.0.1:8000", played.url).replace("brk_…", TOKEN)
    return subprocess.Popen([sys.executable, "-c", told], cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_the_reader_ends_without_a_word_when_it_is_told_to(played: PlayedMailbox, end: signal.Signals) -> None:
    played.put(b"{}")
    with started(READING, played) as process:
        played.wait_for(lambda: played.acknowledged == [1])
        process.send_signal(end)
        played.end()
        _, errors = process.communicate(timeout=PATIENCE)

    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("bodies", [[], [b"1", b"2"]])
def test_the_calls_one_by_one_do_what_is_there_and_nothing_where_nothing_is(
    played: PlayedMailbox, bodies: list[bytes]
) -> None:
    played.put(*bodies)
    played.end()
    with started(CALLING, played) as process:
        _, errors = process.communicate(timeout=PATIENCE)

    assert (process.returncode, errors) == (0, "")
    assert played.acknowledged == [number for number, _ in enumerate(bodies, start=1)]
