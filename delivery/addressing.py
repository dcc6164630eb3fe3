"""The callback addresses that endpoints of QUEUE groups are given (behaviour 6.7)."""

from collections.abc import Collection
from typing import Final

import structlog

from delivery.callback_terms import CallbackTerms
from delivery.callback_tokens import TokenUnreadable, address_of
from subscriptions.database import rows

TOKENS: Final = """
SELECT c.group_id, c.token_hash, c.token_encrypted
  FROM unnest(%s::bigint[]) AS g (id) JOIN delivery_callback c ON c.group_id = g.id
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


def _address(group_id: int, token_hash: bytes, kept: bytes, terms: CallbackTerms) -> str:
    try:
        return address_of(terms.keys.open(token_hash, kept), terms.public_url)
    except TokenUnreadable:
        hint = "give the former secret in BROKER_SECRET_KEY_FALLBACKS"
        log.error("callback.token_unreadable", group_id=group_id, hint=hint)  # noqa: TRY400 - the reason is known
        return ""
