"""Loading retry policies: many subscriptions share one, so that each is read once and not with every destination."""

from collections.abc import Mapping
from typing import Final

from broker_project.core.db import rows
from delivery.retry import RetryPolicy, policy_of
from subscriptions.retry_policies import TERMS, terms_of

POLICIES: Final = """
SELECT id, version, on_redirect, on_throttled, on_client_error, on_unavailable, on_server_error, on_no_answer,
       initial_delay_seconds, factor, max_delay_seconds, jitter, schedule, respect_retry_after, max_retries,
       on_exhausted, probe_seconds
  FROM subscriptions_retrypolicy WHERE id = ANY(%s)
"""
"""After the version the columns are `TERMS`."""

_kept: dict[int, tuple[int, RetryPolicy]] = {}
"""By id, with its version."""


def policies_of(versions: Mapping[int, int]) -> dict[int, RetryPolicy]:
    """Return the policies, given with their versions, by id; one that never was there is missing.

    One that was changed just now may come newer than its version: the stamps of its subscriptions changed with it, and
    nothing is sent after those that were read before.
    """
    unknown = [policy_id for policy_id, version in versions.items() if _kept.get(policy_id, (None,))[0] != version]
    for policy_id, version, *columns in rows(POLICIES, [sorted(unknown)]) if unknown else ():
        _kept[policy_id] = version, policy_of(terms_of(dict(zip(TERMS, columns, strict=True))))
    return {policy_id: _kept[policy_id][1] for policy_id in versions if policy_id in _kept}
