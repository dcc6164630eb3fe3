"""An endpoint knows whether what came is what the script made of the event, and the same each time."""

import json

import pytest
import requests

from tests.faults.everything.scripted import ScriptedEndpoint
from tests.receiver import Receiver

MADE = {"number": 703, "length": 3, "dice": [0.25, 1]}


@pytest.mark.parametrize(
    ("again", "altered"),
    [(MADE, False), (MADE | {"dice": [0.5, 1]}, True), (MADE | {"length": 4}, True), ([], True)],
)
def test_what_a_script_made_is_recognized(receiver: Receiver, again: object, altered: bool) -> None:
    endpoint = ScriptedEndpoint("scripted", receiver)
    for body in (MADE, again):
        requests.post(receiver.url("/scripted"), json.dumps(body), timeout=5).raise_for_status()
    assert [one.altered for one in endpoint.exchanges] == [False, altered]
