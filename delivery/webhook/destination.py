"""Loading where subscriptions' deliveries go, and how."""

import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import structlog
from django.core.exceptions import ValidationError

from broker_project.core.db import rows
from broker_project.core.encryption import (
    FORMER_SECRET,
    SIGNING_SECRET,
    SUBSCRIBER_HEADERS,
    SUBSCRIPTION_HEADERS,
    DecryptionFailed,
    keyring,
    place_of,
)
from delivery.http.transfer import UNUSABLE
from delivery.retry import TEAMFORGE_POLICY, RetryPolicy, policy_of
from delivery.webhook.headers_policy import merged
from delivery.webhook.parts import Destination, Manner
from subscriptions.credentials.tokens import key_of
from subscriptions.endpoints import DEFAULT_METHOD, is_scripted, parse_endpoint
from subscriptions.retry_policies import TERMS, terms_of

FormerSecrets = tuple[tuple[int, bytes, int], ...]
"""Of each: its id, itself, sealed, and until when it signs, in Unix seconds."""


log = structlog.get_logger(__name__)

_kept: dict[int, tuple[int, RetryPolicy]] = {}
"""By id, with its version."""

FORMER: Final = """
SELECT subscription_id, id, secret, extract(epoch FROM signs_until)::bigint FROM subscriptions_formersecret
 WHERE subscription_id = ANY(%s) AND signs_until > clock_timestamp() ORDER BY id DESC
"""
"""Read only where a secret was rotated lately."""
SCRIPTS: Final = "SELECT id, script FROM subscriptions_subscription WHERE id = ANY(%s)"

SCRIPT_CHARACTERS: Final = 8 * 1024 * 1024
"""Scripts kept although no line has them in hand."""


class Sealed(NamedTuple):
    """What is opened to make one, as it is stored."""

    subscriber_id: int
    subscriber_headers: bytes
    own_headers: bytes
    secret: bytes
    former: FormerSecrets


@lru_cache(maxsize=8192)
def destination_of(
    subscription_id: int,
    config_version: int,
    endpoint: str,
    sealed: Sealed,
    manner: Manner,
) -> Destination:
    """Return where a subscription's requests go, as it is configured at `config_version`: the same value each time."""
    try:
        parsed = parse_endpoint(endpoint)
        theirs = json.loads(_opened(SUBSCRIBER_HEADERS, sealed.subscriber_headers, sealed.subscriber_id))
        own = json.loads(_opened(SUBSCRIPTION_HEADERS, sealed.own_headers, subscription_id))
        key = key_of(_opened(SIGNING_SECRET, sealed.secret, subscription_id).decode())
    except ValidationError as refused:
        return _unusable(subscription_id, config_version, " ".join(refused.messages), manner)
    headers, former_keys = merged(theirs, own), tuple(_former_keys(subscription_id, sealed.former))
    return Destination(
        subscription_id, config_version, parsed.method, parsed.url, headers, key, "", *manner, former_keys=former_keys
    )


def is_usable(destination: Destination) -> bool:
    """Tell whether anything can be sent there; where nothing can, no script is run for it either."""
    return not destination.url.startswith(UNUSABLE)


def _former_keys(subscription_id: int, former: FormerSecrets) -> Iterator[tuple[bytes, int]]:
    """Return the keys of former secrets; one that cannot be opened has no say in whether the present one is used."""
    for secret_id, sealed, until in former:
        try:
            yield key_of(_opened(FORMER_SECRET, sealed, secret_id).decode()), until
        except ValidationError as refused:
            why = " ".join(refused.messages)
            log.error("subscription.former_secret_unusable", subscription_id=subscription_id, reason=why)  # noqa: TRY400


def _opened(purpose: str, sealed: bytes, row_id: int) -> bytes:
    try:
        return keyring(purpose).decrypt(sealed, place_of(row_id))
    except DecryptionFailed:
        raise ValidationError(f"the {purpose} cannot be opened: their secret key is gone; set them anew") from None


def _unusable(subscription_id: int, config_version: int, why: str, manner: Manner) -> Destination:
    """Return where nothing can be sent: whatever its retry policy, its line is held, and nothing is given up."""
    log.error("subscription.unusable", subscription_id=subscription_id, reason=why)
    plain = manner._replace(policy=TEAMFORGE_POLICY)
    return Destination(subscription_id, config_version, DEFAULT_METHOD, f"{UNUSABLE}{why}", {}, b"", "", *plain)


POLICIES: Final = """
SELECT id, version, on_redirect, on_throttled, on_client_error, on_unavailable, on_server_error, on_no_answer,
       initial_delay_seconds, factor, max_delay_seconds, jitter, schedule, respect_retry_after, max_retries,
       on_exhausted, probe_seconds
  FROM subscriptions_retrypolicy WHERE id = ANY(%s)
"""
"""After the version the columns are `TERMS`."""


def policies_of(versions: Mapping[int, int]) -> dict[int, RetryPolicy]:
    """Return the policies, given with their versions, by id; one that never was there is missing.

    One that was changed just now may come newer than its version: the stamps of its subscriptions changed with it, and
    nothing is sent after those that were read before.
    """
    unknown = [policy_id for policy_id, version in versions.items() if _kept.get(policy_id, (None,))[0] != version]
    for policy_id, version, *columns in rows(POLICIES, [sorted(unknown)]) if unknown else ():
        _kept[policy_id] = version, policy_of(terms_of(dict(zip(TERMS, columns, strict=True))))
    return {policy_id: _kept[policy_id][1] for policy_id in versions if policy_id in _kept}


DESTINATIONS: Final = """
SELECT s.id, s.version + u.version, s.endpoint, u.id, u.headers, s.headers, s.signing_secret, 1 / s.rate_limit,
       s.output, s.half_open, CASE u.processing WHEN 'CONCURRENT' THEN u.concurrency ELSE 1 END,
       s.script <> '', s.overlap_ends_at > clock_timestamp(), p.id, p.version
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
  LEFT JOIN subscriptions_retrypolicy p ON p.id = s.retry_policy_id
 WHERE s.id = ANY(%s) AND s.is_sending AND u.status = 'ACTIVE'
"""


def destinations_of(subscription_ids: Collection[int]) -> dict[int, Destination]:
    """Return where each subscription's deliveries go now, by its id; one that is gone or not sending is missing."""
    if not subscription_ids:
        return {}
    configured = rows(DESTINATIONS, [sorted(subscription_ids)])
    policies = policies_of({policy_id: version for *_, policy_id, version in configured if policy_id})
    former = former_secrets_of([subscription_id for subscription_id, *_, overlaps, _, _ in configured if overlaps])
    found, scripted = {}, []
    for subscription_id, config_version, endpoint, *columns, has_script, _, policy_id, _ in configured:
        *sealed, spacing, output, half_open, concurrency = columns
        manner = Manner(policies.get(policy_id, TEAMFORGE_POLICY), spacing, output, half_open, concurrency)
        opened = Sealed._make((*sealed, former.get(subscription_id, ())))
        plain = destination_of(subscription_id, config_version, endpoint, opened, manner)
        if has_script and is_usable(plain):
            scripted.append(plain)
        else:
            found[plain.subscription_id] = plain
    return found | _scripts.added_to(scripted) if scripted else found


def former_secrets_of(subscription_ids: Collection[int]) -> dict[int, FormerSecrets]:
    """Return what signs for each subscription beside its present secret; of one for which nothing does, nothing.

    What was replaced after the rest was read has a config version that is not in force any more, as a script does.
    """
    found: dict[int, FormerSecrets] = {}
    for subscription_id, *former in rows(FORMER, [sorted(subscription_ids)]) if subscription_ids else ():
        found[subscription_id] = (*found.get(subscription_id, ()), tuple(former))
    return found


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

        A script that was changed just now has a config version that is not in force any more: nothing is sent after it.
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


def destination_now(subscription_id: int, config_version: int, endpoint: str, *others: Any) -> Destination:
    """Return what the columns `CONFIGURED` say; its script is included where anything can be sent."""
    *sealed, overlaps, output, script = others
    if is_scripted(endpoint):
        return Destination(subscription_id, config_version, DEFAULT_METHOD, endpoint, {}, b"", script)
    former = former_secrets_of([subscription_id]).get(subscription_id, ()) if overlaps else ()
    made = destination_of(
        subscription_id, config_version, endpoint, Sealed._make((*sealed, former)), Manner(output=output)
    )
    return replace(made, script=script) if script and is_usable(made) else made
