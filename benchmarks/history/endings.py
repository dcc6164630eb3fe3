"""How the lives of TOPIC deliveries end: in every status there is; and what goes wrong on the way."""

from dataclasses import dataclass
from typing import Final

from delivery.statuses import DeliveryStatus

ERRORS: Final = (
    'Could not resolve host: "quoted", it\'s',
    "Operation timed out after 10000 milliseconds with 0 bytes received",
    "Failed to connect to 127.0.0.1 port 9 after 0 ms: Could not connect to server",
    "TLS connect error: unexpected eof",
    "Empty reply from server\nand a second line,\r\nand a third",
    "\\N",
    "\\.",
    "\u0001 \\0 \u0085 \U0001f600 ü",
)
"""One of each kind, and what breaks a careless reader of CSV."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How lives of TOPIC deliveries go, and of how many in a thousand."""

    status: DeliveryStatus
    attempts: int
    failing: int
    last: int
    weight: int


KNOWN: Final = (
    Ending(DeliveryStatus.DELIVERED, 2, 500, 200, 40),
    Ending(DeliveryStatus.DELIVERED, 3, 502, 201, 30),
    Ending(DeliveryStatus.REJECTED, 1, 500, 404, 20),
    Ending(DeliveryStatus.NOT_SUPPORTED, 1, 500, 301, 10),
    Ending(DeliveryStatus.FAILED, 4, 500, 599, 10),
    Ending(DeliveryStatus.EXPIRED, 2, 500, 500, 5),
    Ending(DeliveryStatus.CANCELLED, 0, 500, 500, 5),
    Ending(DeliveryStatus.CANCELLED, 1, 500, 500, 5),
    Ending(DeliveryStatus.PENDING, 0, 500, 500, 3),
    Ending(DeliveryStatus.PENDING, 1, 500, 500, 2),
    Ending(DeliveryStatus.IN_FLIGHT, 1, 500, 500, 1),
    Ending(DeliveryStatus.HELD, 0, 500, 500, 3),
)
NAMED: Final = {ending.status for ending in KNOWN} | {DeliveryStatus.REDUNDANT}
OTHERS: Final = tuple(Ending(status, 1, 500, 500, 5) for status in DeliveryStatus if status not in NAMED)
"""Of whatever statuses there are besides."""
MOST: Final = Ending(DeliveryStatus.DELIVERED, 1, 500, 200, 1000 - sum(ending.weight for ending in KNOWN + OTHERS))
ENDINGS: Final = (MOST, *KNOWN, *OTHERS)
