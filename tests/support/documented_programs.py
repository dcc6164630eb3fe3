"""Programs of the documentation, run as they stand."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until

DOCS = Path(__file__).parents[2] / "docs"


@contextmanager
def running_receiver(page: str, **environment: str) -> Iterator[str]:
    """Run the only Python program of a page, which receives requests at port 9000, at another port; give its URL."""
    (code,) = re.findall(r"```python\n(.+?)```", (DOCS / page).read_text(), re.DOTALL)
    port = free_port()
    program = [
        sys.executable,
        "-c",
        code.replace('int(os.environ.get("PORT", "9000"))', "9000").replace("9000", str(port)),
    ]
    with subprocess.Popen(
        program, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        url = f"http://127.0.0.1:{port}/"
        try:
            wait_until(lambda: is_listening(url))
            yield url
        finally:
            process.terminate()


def free_port() -> int:
    """Return a port of the loopback interface where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def is_listening(url: str) -> bool:
    """Tell whether something answers there, whatever it says."""
    try:
        requests.get(url, timeout=PATIENCE_SECONDS)
    except requests.ConnectionError:
        return False
    return True
