"""Where a call or a test event goes: as its subscription is configured now, whatever its status."""

from dataclasses import replace
from typing import Any

from delivery.webhook.destination import former_secrets_of
from delivery.webhook.destinations import Sealed, destination_of, is_usable
from delivery.webhook.parts import Destination, Manner
from subscriptions.endpoints import DEFAULT_METHOD, is_scripted


def destination_now(subscription_id: int, stamp: int, endpoint: str, *others: Any) -> Destination:
    """Return what the columns `CONFIGURED` say; its script is included where anything can be sent."""
    *sealed, overlaps, output, script = others
    if is_scripted(endpoint):
        return Destination(subscription_id, stamp, DEFAULT_METHOD, endpoint, {}, b"", script)
    former = former_secrets_of([subscription_id]).get(subscription_id, ()) if overlaps else ()
    made = destination_of(subscription_id, stamp, endpoint, Sealed._make((*sealed, former)), Manner(output=output))
    return replace(made, script=script) if script and is_usable(made) else made
