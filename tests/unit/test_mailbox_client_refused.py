"""The client's calls where there is no answer, or none that was hoped for."""

import pytest
import requests

from broker_client import Mailbox, Refused
from tests.played_answers import LOST, Trouble
from tests.played_mailbox import PlayedMailbox

ERRORS = [
    {"pointer": "#/max", "code": "min_value", "detail": "At least 1."},
    {"pointer": "#/receipts/0", "code": "invalid", "detail": "Not a string."},
    {"parameter": "page", "code": "unknown", "detail": "Unknown."},
    {"pointer": "#", "code": "invalid", "detail": "What is this?"},
]


@pytest.mark.parametrize(
    ("trouble", "text", "passes", "retry_after"),
    [
        (
            Trouble(404, {"title": "Not found", "detail": "There is no mailbox."}),
            "404: There is no mailbox.",
            False,
            None,
        ),
        (
            Trouble(400, {"detail": "See errors.", "errors": ERRORS}),
            "400: See errors. max: At least 1.; receipts/0: Not a string.; page: Unknown.; What is this?",
            False,
            None,
        ),
        (
            Trouble(400, {"title": "Odd", "errors": ["text", {"detail": 5}, None]}),
            "400: Odd 5",
            False,
            None,
        ),
        (Trouble(400, {"title": "Odd", "errors": "text"}), "400: Odd", False, None),
        (Trouble(403, {"title": "Forbidden"}), "403: Forbidden", False, None),
        (Trouble(400, ["no problem document"]), "400: Bad Request", False, None),
        (Trouble(302, headers={"Location": "/elsewhere"}), "302: Found", False, None),
        (Trouble(429, {"title": "Too many"}, {"Retry-After": "7"}), "429: Too many", True, 7.0),
        (Trouble(503, {"title": "Later"}, {"Retry-After": "Sat, 01 Jan 2028"}), "503: Later", True, None),
        (Trouble(502), "502: Bad Gateway", True, None),
    ],
)
def test_what_the_broker_refuses_says_why_and_whether_it_passes(
    played: PlayedMailbox, mailbox: Mailbox, trouble: Trouble, text: str, passes: bool, retry_after: float | None
) -> None:
    played.troubles["next"].append(trouble)

    with pytest.raises(Refused) as refused:
        mailbox.next()

    assert (str(refused.value), refused.value.passes, refused.value.retry_after) == (text, passes, retry_after)


def test_no_answer_is_an_error_of_the_connection(played: PlayedMailbox, mailbox: Mailbox) -> None:
    played.troubles["next"].append(LOST)

    with pytest.raises(requests.RequestException):
        mailbox.next()
