"""Making destinations of what is configured: opening what is sealed, once for each change of it."""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import structlog
from django.core.exceptions import ValidationError

from broker_project.core.keyring import CannotBeOpened, place_of
from broker_project.core.sealing import FORMER_SECRET, SIGNING_SECRET, SUBSCRIBER_HEADERS, SUBSCRIPTION_HEADERS, keyring
from delivery.http.transfer import UNUSABLE
from delivery.retry import TEAMFORGE_POLICY
from delivery.webhook.headers_policy import merged
from delivery.webhook.parts import Destination, Manner
from subscriptions.credentials.signing_secrets import key_of
from subscriptions.endpoints import DEFAULT_METHOD, parse_endpoint

FormerSecrets = tuple[tuple[int, bytes, int], ...]
"""Of each: its id, itself, sealed, and until when it signs, in Unix seconds."""


class Sealed(NamedTuple):
    """What is opened to make one, as it is stored."""

    subscriber_id: int
    subscriber_headers: bytes
    own_headers: bytes
    secret: bytes
    former: FormerSecrets


log = structlog.get_logger(__name__)


@lru_cache(maxsize=8192)
def destination_of(
    subscription_id: int,
    stamp: int,
    endpoint: str,
    sealed: Sealed,
    manner: Manner,
) -> Destination:
    """Return where a subscription's requests go, as it is configured at `stamp`: the same value each time."""
    try:
        parsed = parse_endpoint(endpoint)
        theirs = json.loads(_opened(SUBSCRIBER_HEADERS, sealed.subscriber_headers, sealed.subscriber_id))
        own = json.loads(_opened(SUBSCRIPTION_HEADERS, sealed.own_headers, subscription_id))
        key = key_of(_opened(SIGNING_SECRET, sealed.secret, subscription_id).decode())
    except ValidationError as refused:
        return _unusable(subscription_id, stamp, " ".join(refused.messages), manner)
    headers, former_keys = merged(theirs, own), tuple(_former_keys(subscription_id, sealed.former))
    return Destination(
        subscription_id, stamp, parsed.method, parsed.url, headers, key, "", *manner, former_keys=former_keys
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
        return keyring(purpose).open(sealed, place_of(row_id))
    except CannotBeOpened:
        raise ValidationError(f"the {purpose} cannot be opened: their secret key is gone; set them anew") from None


def _unusable(subscription_id: int, stamp: int, why: str, manner: Manner) -> Destination:
    """Return where nothing can be sent: whatever its retry policy, its line is held, and nothing is given up."""
    log.error("subscription.unusable", subscription_id=subscription_id, reason=why)
    plain = manner._replace(policy=TEAMFORGE_POLICY)
    return Destination(subscription_id, stamp, DEFAULT_METHOD, f"{UNUSABLE}{why}", {}, b"", "", *plain)
