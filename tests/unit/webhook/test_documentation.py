"""Run the documented receivers (verify-signatures.md, first-webhook.md) as they stand: they accept signed requests."""

import time
from collections.abc import Iterator, Sequence

import pytest
import requests

from broker_project.stack.load.wait import PATIENCE_SECONDS
from subscriptions.credentials.tokens import secret_of
from tests.support.documented_programs import running_receiver
from tests.support.factories import signature

KEY, OTHER = b"k" * 32, b"o" * 32
BODY = b'{"order": 4711}'


@pytest.fixture(params=["how-to/verify-signatures.md", "tutorial/first-webhook.md"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with running_receiver(request.param, SECRET=secret_of(KEY)) as url:
        yield url


def status(address: str, keys: Sequence[bytes], *, sent_at: int | None = None, body: bytes = BODY) -> int:
    at = int(time.time()) if sent_at is None else sent_at
    signed = " ".join(signature(key, webhook_id="dlv_7", timestamp=at, body=BODY) for key in keys)
    headers = {"webhook-id": "dlv_7", "webhook-timestamp": str(at), "webhook-signature": signed}
    return requests.post(address, body, headers=headers, timeout=PATIENCE_SECONDS).status_code


@pytest.mark.parametrize("keys", [[KEY], [KEY, OTHER], [OTHER, KEY]])
def test_one_valid_signature_is_enough(address: str, keys: Sequence[bytes]) -> None:
    assert status(address, keys) == 204


def test_invalid_signatures_are_refused(address: str) -> None:
    assert status(address, [OTHER]) == 401
    assert status(address, [KEY], body=BODY + b" ") == 401
    assert status(address, [KEY], sent_at=int(time.time()) - 301) == 401
    assert status(address, [], sent_at=int(time.time())) == 401
