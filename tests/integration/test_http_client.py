"""What the driver's client gives back, and when: requests that went out together are answered together."""

import time
from collections.abc import Iterator

import pytest
import requests

from delivery import http_client
from delivery.header_lines import EncodedRequest
from delivery.http_client import HttpClient
from tests.receiver import Receiver, hang

LONG = 30.0


@pytest.fixture
def client() -> Iterator[HttpClient]:
    client = HttpClient(deadline_seconds=LONG)
    yield client
    client.close()


def send(client: HttpClient, receiver: Receiver, *paths: str) -> None:
    """Let requests go out together."""
    for path in paths:
        client.start(path, EncodedRequest("POST", receiver.url(path), [], b"{}"))
    client.begin()


def test_requests_that_went_out_together_are_answered_together(
    client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "GATHER_SECONDS", LONG)
    paths = [f"/{number}" for number in range(20)]
    send(client, receiver, *paths)
    assert client.is_gathering

    answers = client.wait(LONG)

    assert sorted(str(answer.token) for answer in answers) == sorted(paths)
    assert all(isinstance(answer.result, requests.Response) for answer in answers)
    assert not client.is_gathering


def test_answers_wait_for_one_that_does_not_come_but_a_moment(client: HttpClient, receiver: Receiver) -> None:
    receiver.on("/hangs", hang)
    send(client, receiver, "/hangs", "/answers")

    assert [answer.token for answer in client.wait(LONG)] == ["/answers"]
    assert client.is_gathering, "it may still come"


def test_answers_do_not_wait_for_what_went_out_earlier(
    client: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "GATHER_SECONDS", LONG)
    receiver.on("/hangs", hang)
    send(client, receiver, "/hangs")
    send(client, receiver, "/answers")
    began = time.monotonic()

    assert [answer.token for answer in client.wait(LONG)] == ["/answers"]
    assert time.monotonic() < began + LONG / 2
