"""Loading where subscriptions' deliveries go, and how."""

import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from typing import Final

import structlog
from django.core.exceptions import ValidationError

from delivery.http.transfers import UNUSABLE
from delivery.rules.retry_policies import TEAMFORGE_POLICY
from delivery.webhooks.forwarded_headers import merged
from delivery.webhooks.parts import AS_USUAL, Destination, Manner
from delivery.webhooks.policies import policies_of
from subscriptions.database import rows
from subscriptions.endpoints import DEFAULT_METHOD, parse_endpoint
from subscriptions.keyring import CannotBeOpened, place_of
from subscriptions.sealing import SIGNING_SECRET, SUBSCRIBER_HEADERS, SUBSCRIPTION_HEADERS, keyring
from subscriptions.signing_secrets import key_of

DESTINATIONS: Final = """
SELECT s.id, s.version + u.version, s.endpoint, u.id, u.headers, s.headers, s.signing_secret, 1 / s.rate_limit,
       s.output, s.on_trial, CASE u.processing WHEN 'CONCURRENT' THEN u.concurrency ELSE 1 END,
       s.script <> '', p.id, p.version
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
  LEFT JOIN subscriptions_retrypolicy p ON p.id = s.retry_policy_id
 WHERE s.id = ANY(%s) AND s.is_sending AND u.status = 'ACTIVE'
"""

SCRIPTS: Final = "SELECT id, script FROM subscriptions_subscription WHERE id = ANY(%s)"

SCRIPT_CHARACTERS: Final = 8 * 1024 * 1024
"""Scripts kept although no line has them in hand."""

log = structlog.get_logger(__name__)


def destinations_of(subscription_ids: Collection[int]) -> dict[int, Destination]:
    """Return where each subscription's deliveries go now, by its id; one that is gone or not sending is missing."""
    if not subscription_ids:
        return {}
    configured = rows(DESTINATIONS, [sorted(subscription_ids)])
    policies = policies_of({policy_id: version for *_, policy_id, version in configured if policy_id})
    found, scripted = {}, []
    for *columns, spacing, output, on_trial, strands, has_script, policy_id, _ in configured:
        policy = policies.get(policy_id, TEAMFORGE_POLICY)
        plain = destination_of(*columns, Manner(policy, spacing, output, on_trial, strands))
        if has_script and not plain.url.startswith(UNUSABLE):
            scripted.append(plain)
        else:
            found[plain.subscription_id] = plain
    return found | _scripts.added_to(scripted) if scripted else found


class _Scripts:
    """The destinations with their scripts, those used lately: scripts are large, so that each is read but once."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Destination, Destination] = OrderedDict()
        """By what each is without its script."""
        self._characters = 0
        self._lock = threading.Lock()
        """Not only the driver's thread loads destinations."""

    def added_to(self, plain: Collection[Destination]) -> dict[int, Destination]:
        """Return the destinations with their scripts, by id; one that is gone is missing.

        A script that was changed just now comes with a stamp that is not in force any more: nothing is sent after it.
        """
        known = {one.subscription_id: used for one in plain if (used := self._used(one))}
        unknown = {one.subscription_id: one for one in plain if one.subscription_id not in known}
        for subscription_id, script in rows(SCRIPTS, [sorted(unknown)]) if unknown else ():
            known[subscription_id] = self._keep(unknown[subscription_id], sys.intern(script))
        return known

    def _used(self, plain: Destination) -> Destination | None:
        with self._lock:
            scripted = self._kept.get(plain)
            if scripted:
                self._kept.move_to_end(plain)
            return scripted

    def _keep(self, plain: Destination, script: str) -> Destination:
        with self._lock:
            earlier = self._kept.get(plain)
            self._characters += len(script) - (len(earlier.script) if earlier else 0)
            scripted = self._kept[plain] = replace(plain, script=script)
            while self._characters > SCRIPT_CHARACTERS:
                _, dropped = self._kept.popitem(last=False)
                self._characters -= len(dropped.script)
            return scripted


_scripts = _Scripts()


@lru_cache(maxsize=8192)
def destination_of(
    subscription_id: int,
    stamp: int,
    endpoint: str,
    subscriber_id: int,
    subscriber_headers: bytes,
    own_headers: bytes,
    secret: bytes,
    manner: Manner = AS_USUAL,
) -> Destination:
    """Return where a subscription's requests go, as it is configured at `stamp`: the same value each time.

    Headers and secret are as they are stored, sealed.
    """
    try:
        parsed = parse_endpoint(endpoint)
        theirs = json.loads(_opened(SUBSCRIBER_HEADERS, subscriber_headers, subscriber_id))
        own = json.loads(_opened(SUBSCRIPTION_HEADERS, own_headers, subscription_id))
        key = key_of(_opened(SIGNING_SECRET, secret, subscription_id).decode())
    except ValidationError as refused:
        return _unusable(subscription_id, stamp, " ".join(refused.messages), manner)
    return Destination(subscription_id, stamp, parsed.method, parsed.url, merged(theirs, own), key, "", *manner)


def _opened(purpose: str, sealed: bytes, row_id: int) -> bytes:
    try:
        return keyring(purpose).open(sealed, place_of(row_id))
    except CannotBeOpened:
        raise ValidationError(f"the {purpose} cannot be opened: their secret key is gone; set them anew") from None


def _unusable(subscription_id: int, stamp: int, why: str, manner: Manner) -> Destination:
    """Return where nothing can be sent: whatever its retry policy, its line is held, and nothing is given up."""
    log.error("subscription.unusable", subscription_id=subscription_id, reason=why)
    plain = manner._replace(policy=TEAMFORGE_POLICY)
    return Destination(subscription_id, stamp, DEFAULT_METHOD, f"{UNUSABLE}{why}", {}, b"", "", *plain)
