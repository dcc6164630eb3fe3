"""The page about problems names every one there is, with its status, and no other."""

import re
from collections.abc import Iterator
from http import HTTPStatus

from broker_project import urls as urls  # registers what all use cases raise
from broker_project.core.api.problems import registered
from broker_project.core.api.rendering import BAD_REQUEST, FAILED
from broker_project.stack.folders import ROOT
from delivery.api.receipts import REFUSALS
from delivery.mailbox.results import ReceiptCode

ROW = re.compile(r"^\| `(\w+)` \| (\d{3}) \|", re.MULTILINE)
REFUSAL = re.compile(r"refusal\(\s*(\d{3}),\s*\"(\w+)\"")
"""How the web server's side refuses what Django never hears of."""
ENDED = {ReceiptCode.FAILED, ReceiptCode.CANCELLED, ReceiptCode.ENDED}
"""A receipt whose delivery has ended is refused with how it did."""


def existing() -> Iterator[tuple[str, int]]:
    """Return code and status of every problem."""
    yield from ((kind.code, kind.status) for kind in (*registered(), BAD_REQUEST, FAILED))
    for code in {*REFUSALS, *ENDED}:
        yield str(code), int(HTTPStatus.NOT_FOUND if code is ReceiptCode.UNKNOWN else HTTPStatus.CONFLICT)
    for file in (ROOT / "broker_project" / "server").glob("*.py"):
        yield from ((code, int(status)) for status, code in REFUSAL.findall(file.read_text()))


def test_every_problem_is_documented_and_none_besides() -> None:
    rows = ROW.findall((ROOT / "docs" / "reference" / "problems.md").read_text())
    assert {(code, int(status)) for code, status in rows} == {*existing()}
    assert [code for code, _ in rows] == sorted({code for code, _ in rows})
