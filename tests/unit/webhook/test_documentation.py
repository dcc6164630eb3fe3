"""Run the documented receivers (verify-signatures.md, first-webhook.md) as they stand: they accept signed requests."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import requests

from broker_project.stack.load.wait import wait_until
from subscriptions.credentials.tokens import secret_of
from tests.support.factories import signature

DOCS = Path(__file__).parents[3] / "docs"
KEY, OTHER = b"k" * 32, b"o" * 32
BODY = b'{"order": 4711}'


def program(page: str) -> str:
    (found,) = re.findall(r"```python\n(.+?)```", (DOCS / page).read_text(), re.DOTALL)
    return str(found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture(params=["how-to/verify-signatures.md", "tutorial/first-webhook.md"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    port = free_port()
    code = program(request.param).replace('int(os.environ.get("PORT", "9000"))', str(port)).replace("9000", str(port))
    environment = {**os.environ, "SECRET": secret_of(KEY)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        url = f"http://127.0.0.1:{port}/"
        wait_until(lambda: is_listening(url))
        yield url
        process.terminate()


def is_listening(url: str) -> bool:
    try:
        requests.get(url, timeout=5)
    except requests.ConnectionError:
        return False
    return True


def status(address: str, keys: Sequence[bytes], *, sent_at: int | None = None, body: bytes = BODY) -> int:
    at = int(time.time()) if sent_at is None else sent_at
    signed = " ".join(signature(key, webhook_id="dlv_7", timestamp=at, body=BODY) for key in keys)
    headers = {"webhook-id": "dlv_7", "webhook-timestamp": str(at), "webhook-signature": signed}
    return requests.post(address, body, headers=headers, timeout=5).status_code


@pytest.mark.parametrize("keys", [[KEY], [KEY, OTHER], [OTHER, KEY]])
def test_one_valid_signature_is_enough(address: str, keys: Sequence[bytes]) -> None:
    assert status(address, keys) == 204


def test_invalid_signatures_are_refused(address: str) -> None:
    assert status(address, [OTHER]) == 401
    assert status(address, [KEY], body=BODY + b" ") == 401
    assert status(address, [KEY], sent_at=int(time.time()) - 301) == 401
    assert status(address, [], sent_at=int(time.time())) == 401
