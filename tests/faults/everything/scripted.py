"""An endpoint that gets what a script makes of each event, and the script."""

import json

from tests.faults.endpoints import Endpoint, exchange_of
from tests.faults.exchanges import Exchange
from tests.receiver import Received, Receiver

SCRIPT = "$outmessage = {number: $inmessage.number, length: $inmessage.size.length, dice: [Math.random(), Date.now()]}"
"""What a repeated request has to say again, too (behaviour 8.3)."""


class ScriptedEndpoint(Endpoint):
    """Looks whether each request has the body that the script makes of its event, and the same each time."""

    def __init__(self, name: str, receiver: Receiver) -> None:
        super().__init__(name, receiver)
        self._dice: dict[int, object] = {}

    def _noted(self, request: Received) -> Exchange:
        exchange = exchange_of(request)
        exchange.altered = not self._is_made_by_the_script(exchange.number, request.body)
        return exchange

    def _is_made_by_the_script(self, number: int, body: bytes) -> bool:
        try:
            made = json.loads(body)
        except ValueError:
            return False
        if not isinstance(made, dict):
            return False
        dice = self._dice.setdefault(number, made.get("dice"))
        return bool(dice) and made == {"number": number, "length": number % 700, "dice": dice}
