"""What is on its way and what became of it: `messages`, `lines`, `deliveries`, `replays`; all exported here."""

from delivery.models.deliveries import (
    OPEN_SHELF,
    Attempt,
    DeadLetter,
    Delivery,
    Mailbox,
    MinuteCount,
    MinuteTotal,
    StorageDay,
    standing,
)
from delivery.models.lines import (
    Announcement,
    Callback,
    Hold,
    Lane,
    Line,
    LineEvent,
    LineEventKind,
    Pace,
    PageRead,
    QueueGroup,
    TurnFloor,
)
from delivery.models.messages import IdempotencyKey, Message, MessageOutcome, VolatileCount, VolatileOutcome
from delivery.models.replays import Replay, ReplayKind, ReplayState

__all__ = [
    "OPEN_SHELF",
    "Announcement",
    "Attempt",
    "Callback",
    "DeadLetter",
    "Delivery",
    "Hold",
    "IdempotencyKey",
    "Lane",
    "Line",
    "LineEvent",
    "LineEventKind",
    "Mailbox",
    "Message",
    "MessageOutcome",
    "MinuteCount",
    "MinuteTotal",
    "Pace",
    "PageRead",
    "QueueGroup",
    "Replay",
    "ReplayKind",
    "ReplayState",
    "StorageDay",
    "TurnFloor",
    "VolatileCount",
    "VolatileOutcome",
    "standing",
]
