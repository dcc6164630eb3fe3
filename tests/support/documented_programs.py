"""Programs of the documentation, run as they stand."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from broker_project.stack.ports import any_free

DOCS = Path(__file__).parents[2] / "docs"


@contextmanager
def running_receiver(page: str, **environment: str) -> Iterator[str]:
    """Run the only Python program of a page, which receives requests at port 9000, at another port; give its URL."""
    (code,) = re.findall(r"```python\n(.+?)```", (DOCS / page).read_text(), re.DOTALL)
    port = any_free()
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


def is_listening(url: str) -> bool:
    """Tell whether something answers there, whatever it says."""
    try:
        requests.get(url, timeout=PATIENCE_SECONDS)
    except requests.ConnectionError:
        return False
    return True
