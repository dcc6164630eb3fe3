"""The buttons of the portal: each calls one operation of the API on one record."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from delivery.replay.eligibility import RESUBMITTABLE
from subscriptions.credentials.scopes import Scope
from subscriptions.endpoints import is_scripted
from subscriptions.models import EventKind

Record = Mapping[str, Any]
"""As the API shows it; a subscription with the `kind` of its events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation on one record."""

    label: str
    done: str
    """What has happened then."""
    warning: str = ""
    """What is said before; empty: nothing, it is done at once."""
    scope: Scope = Scope.OPERATE
    method: str = "POST"
    body: Mapping[str, Any] | None = None
    offered: Callable[[Record], bool] = field(default=lambda _: True)
    """Whether it does anything to the record now."""
    is_repeatable: bool = False
    """Whether it may be done again if its form is sent again: it is not done in one transaction."""


BY_PORTAL: Final = {"reason": "in the portal"}

SUBSCRIPTION: Final = {
    "send-test-event": Operation(
        label="Send test event",
        done="The test event was sent.",
        offered=lambda one: one["delivery_mode"] == "PUSH" and not is_scripted(one["endpoint"]),
        is_repeatable=True,
    ),
    "pause": Operation(
        label="Pause",
        done="Paused. Messages are stored, and sent once it is resumed.",
        body=BY_PORTAL,
        offered=lambda one: one["paused_since"] is None and one["kind"] != EventKind.SYNC,
    ),
    "resume": Operation(
        label="Resume",
        done="Resumed. What waits is sent in order.",
        offered=lambda one: one["paused_since"] is not None,
    ),
    "activate": Operation(
        label="Activate",
        done="Activated. New messages are delivered.",
        scope=Scope.CONFIGURE,
        offered=lambda one: one["status"] == "INACTIVE",
    ),
    "rotate-secret": Operation(
        label="Rotate secret",
        done="The secret was rotated.",
        warning="A new signing secret is shown once. The present one signs too for 24 hours.",
        scope=Scope.CONFIGURE,
        body={},
    ),
    "end-overlap": Operation(
        label="End overlap of secrets",
        done="Only the new secret signs from now on.",
        warning="Receivers that still verify with the former secret refuse messages.",
        scope=Scope.CONFIGURE,
        offered=lambda one: one["overlap_ends_at"] is not None,
    ),
    "inactivate": Operation(
        label="Inactivate",
        done="Inactivated. Messages published from now on are not delivered later.",
        warning="Messages published while it is inactive are never delivered. To lose nothing, pause it instead.",
        scope=Scope.CONFIGURE,
        offered=lambda one: one["status"] == "ACTIVE",
    ),
    "cancel-deliveries": Operation(
        label="Cancel unfinished deliveries",
        done="What waited was cancelled, as much as five seconds allow: repeat it while something waits."
        " What is in flight ends so too, unless its answer ends it otherwise.",
        warning="What waits for this subscription is never sent. This cannot be undone.",
        is_repeatable=True,
    ),
    "delete": Operation(
        label="Delete",
        done="The subscription was deleted.",
        warning="It cannot be restored, and its deliveries are not shown any more. Cancel unfinished deliveries first.",
        scope=Scope.CONFIGURE,
        method="DELETE",
    ),
}
DELIVERY: Final = {
    "resubmit": Operation(
        label="Resubmit",
        done="Resubmitted: this is the new delivery.",
        offered=lambda one: one["status"] in RESUBMITTABLE,
    ),
    "try-now": Operation(
        label="Try now",
        done="It is tried now.",
        offered=lambda one: one["status"] == "PENDING" and one["due_at"] is not None,
    ),
    "release": Operation(
        label="Release",
        done="Released: it is sent regardless of its filter.",
        offered=lambda one: one["status"] == "HELD",
    ),
}
REPLAY: Final = {
    "cancel": Operation(
        label="Cancel",
        done="The replay was cancelled. What it has created stays.",
        offered=lambda one: one["finished_at"] is None and one["kind"] == "REPLAY",
    ),
}
OPERATIONS: Final[Mapping[str, Mapping[str, Operation]]] = {
    "subscriptions": SUBSCRIPTION,
    "deliveries": DELIVERY,
    "replays": REPLAY,
}
"""By the API's names for records and operations."""
SAVED, STARTED = "saved", "started"
NOTES: Final = {SAVED: "Saved.", STARTED: "The replay has started."} | {
    name: operation.done for operations in OPERATIONS.values() for name, operation in operations.items()
}
"""What has been done, as the page that follows says it."""


def offered(records: str, record: Record, scopes: list[str]) -> Iterator[tuple[str, Operation]]:
    """Yield the operations that a key with these scopes can do to a record now."""
    for name, operation in OPERATIONS[records].items():
        if operation.scope in scopes and operation.offered(record):
            yield name, operation
