"""Looking for secrets finds them in the dresses that they wear."""

import base64
import json
import zlib

import pytest

from tests.support.secret_search import TextsByPlace

SECRET = "confidential-0123456789"
BODY = json.dumps({"secret": SECRET}).encode()


def in_base64(text: bytes) -> bytes:
    return b'{"body": "' + base64.b64encode(text) + b'"}'


@pytest.mark.parametrize(
    "text",
    [
        BODY,
        in_base64(BODY),
        in_base64(b"x" + in_base64(BODY)),
        in_base64(b"xy" + in_base64(in_base64(BODY))),
        base64.urlsafe_b64encode(b"\xff\xfe\xfb" + BODY).rstrip(b"="),
        b"." + base64.urlsafe_b64encode(zlib.compress(BODY * 9)),
        b"/%63onfidential%2D0123456789",
    ],
)
def test_a_secret_is_found(text: bytes) -> None:
    assert TextsByPlace({"log": b"a line\n" + text + b"\n"}).with_any_of({"body": SECRET}) == ["body in log"]


def test_what_has_none_is_left_alone() -> None:
    assert TextsByPlace({"log": in_base64(b"confidential-0123456780" * 9)}).with_any_of({"body": SECRET}) == []
