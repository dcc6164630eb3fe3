"""The callback addresses that endpoints of QUEUE groups are given, and where the replies go (contract 6.7, 6.8)."""

from collections.abc import Collection
from functools import lru_cache
from typing import Final

import structlog

from broker_project.core.db import rows
from broker_project.core.keyring import CannotBeOpened
from delivery.callbacks.address import CallbackTerms, address_of, opened_token
from delivery.retry import CALLBACK_POLICY
from delivery.webhook.parts import Destination
from delivery.worker.settlements import NEVER_CONFIGURED
from subscriptions.endpoints import DEFAULT_METHOD

TOKENS: Final = """
SELECT c.group_id, c.token_hash, c.token_sealed
  FROM unnest(%s::bigint[]) AS g (id) JOIN delivery_callback c ON c.group_id = g.id
"""
ORIGINALS: Final = """
SELECT l.id, c.url FROM delivery_line l JOIN delivery_callback c ON c.id = l.callback_id WHERE l.id = ANY(%s)
"""

log = structlog.get_logger(__name__)


def callback_addresses(group_ids: Collection[int], terms: CallbackTerms) -> dict[int, str]:
    """Return where each group's endpoint posts its result, by group; groups without a callback are missing.

    Empty where the token cannot be read any more because its secret is gone: such a group is not to be sent, since its
    result would go nowhere.
    """
    if not group_ids:
        return {}
    found = rows(TOKENS, [sorted(group_ids)])
    return {group_id: _address(group_id, bytes(token_hash), bytes(kept), terms) for group_id, token_hash, kept in found}


def original_addresses(line_ids: Collection[int]) -> dict[int, Destination]:
    """Return where the reply in each callback's line goes, by line: what was published as its CallbackURL."""
    if not line_ids:
        return {}
    return {line_id: _original(url) for line_id, url in rows(ORIGINALS, [sorted(line_ids)])}


@lru_cache(maxsize=1024)
def _original(url: str) -> Destination:
    return Destination(0, NEVER_CONFIGURED, DEFAULT_METHOD, url, headers={}, signing_key=b"", policy=CALLBACK_POLICY)


def _address(group_id: int, token_hash: bytes, kept: bytes, terms: CallbackTerms) -> str:
    try:
        return address_of(opened_token(token_hash, kept, terms.keys), terms.public_url)
    except CannotBeOpened:
        hint = "give the former secret in BROKER_SECRET_KEY_FALLBACKS"
        log.error("callback.token_unreadable", group_id=group_id, hint=hint)  # noqa: TRY400 - the reason is known
        return ""
