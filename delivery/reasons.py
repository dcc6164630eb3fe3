"""The kinds of failure that publishers see; the full text is for the owner of the subscription."""

import re
from typing import Final

from broker_project.core.egress import NOT_ALLOWED

NO_ANSWER: Final = "no answer: "
USED_UP: Final = "retries used up: "
"""What is put before the last outcome of what has been tried as often as it may be."""
SUSPENDED: Final = "suspended: "
"""The same where it stays, and its subscription is paused."""
UNKNOWN: Final = "the connection or the answer broke"


_BEFORE: Final = re.compile(rf"(released; |not taken in time: |expired: |{USED_UP}|{SUSPENDED})(.+)", re.DOTALL)
"""What is put before the reason that a delivery had."""
_HEADED: Final = re.compile(r"(filter failed|script failed|script lost): ")


KINDS: Final = {
    re.compile(NOT_ALLOWED): "its address is not allowed",
    re.compile(r"Could not resolve "): "the name of its host was not resolved",
    re.compile(r".* (timed out|Timeout was reached)"): "timed out",
    re.compile(r"Failed to connect "): "no connection",
    re.compile(r"(TLS|SSL|OpenSSL)\b"): "TLS failed",
}
"""By how libcurl's text begins, or ours; the names in it have no spaces."""
_OWN: Final = re.compile(
    r"expired|answered \d{3}|delivery \d+ was taken|cancelled [A-Za-z ]+|not taken in time"
    r"|unread for \d+ days?|redeliveries used up: not acknowledged \d+ times?|purged[A-Za-z ]*"
    r"|no process was free to run the script"
    r"|The endpoint answered \d{3} with (more than [\d,]+ bytes|fewer bytes than it promised)\."
    r"|The endpoint answered with the status \d+, which cannot be passed on\."
)
"""Reasons that are the broker's own words throughout."""


def redact_reason(reason: str) -> str:
    """Return what publishers are told of a delivery's reason."""
    if before := _BEFORE.fullmatch(reason):
        return before[1] + redact_reason(before[2])
    if reason.startswith(NO_ANSWER):
        return NO_ANSWER + kind_of(reason.removeprefix(NO_ANSWER))
    if headed := _HEADED.match(reason):
        return headed[1]
    return reason if _OWN.fullmatch(reason) or not reason else "failed"


def kind_of(failure: str) -> str:
    """Return what kind of failure keeps an endpoint's answer away, by the text that says why there is none."""
    return next((kind for begins, kind in KINDS.items() if begins.match(failure)), UNKNOWN)
