"""What is on its way and what became of it: one module a model, re-exported here."""

from delivery.due_times_ import UNTIL_ACTIVE, UNTIL_DUE, UNTIL_RELEASED, UNTIL_RETURNED
from delivery.models.announcements import Announcement
from delivery.models.attempts import Attempt
from delivery.models.callbacks import Callback
from delivery.models.dead_letters import DeadLetter
from delivery.models.deliveries import OPEN_SHELF, Delivery, standing
from delivery.models.idempotency_keys import IdempotencyKey
from delivery.models.lines import Lane, Line, LineEvent, LineEventKind
from delivery.models.mailboxes import Mailbox
from delivery.models.messages import Message, MessageOutcome
from delivery.models.paces import Pace
from delivery.models.page_reads import PageRead
from delivery.models.queue_groups import QueueGroup
from delivery.models.replays import Replay, ReplayKind, ReplayState
from delivery.models.storage_days import StorageDay
from delivery.models.volatile_counts import VolatileCount, VolatileOutcome

__all__ = [
    "OPEN_SHELF",
    "UNTIL_ACTIVE",
    "UNTIL_DUE",
    "UNTIL_RELEASED",
    "UNTIL_RETURNED",
    "Announcement",
    "Attempt",
    "Callback",
    "DeadLetter",
    "Delivery",
    "IdempotencyKey",
    "Lane",
    "Line",
    "LineEvent",
    "LineEventKind",
    "Mailbox",
    "Message",
    "MessageOutcome",
    "Pace",
    "PageRead",
    "QueueGroup",
    "Replay",
    "ReplayKind",
    "ReplayState",
    "StorageDay",
    "VolatileCount",
    "VolatileOutcome",
    "standing",
]
