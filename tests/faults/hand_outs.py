"""What clients of a mailbox write down."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Handed:
    """One message that a client got; times are the broker's, in seconds since 1970."""

    receipt: str
    client: str
    number: int
    webhook_id: str
    redeliveries: int
    flagged: bool
    altered: bool
    begun: float
    until: float


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client is about to say of a receipt: if it is killed, nobody knows whether it was heard."""

    receipt: str
    word: str
    at: float


@dataclass(frozen=True, slots=True)
class Said:
    """What a client said of a receipt, and the answer; times are the client's, by the same clock."""

    receipt: str
    word: str
    status: int
    code: str
    asked_at: float
    answered_at: float
    until: float
    """Until when it was extended; 0: it was not."""


Record = Handed | Asked | Said


def in_hand(records: Sequence[Record]) -> list[Handed]:
    """Return what clients have got and not begun to say anything of."""
    asked = {one.receipt for one in records if isinstance(one, Asked)}
    return [one for one in records if isinstance(one, Handed) and one.receipt not in asked]
