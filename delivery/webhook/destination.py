"""Loading where subscriptions' deliveries go, and how."""

import sys
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from broker_project.core.db import rows
from delivery.retry import TEAMFORGE_POLICY
from delivery.webhook.destinations import FormerSecrets, Sealed, destination_of, is_usable
from delivery.webhook.parts import Destination, Manner
from delivery.webhook.policies import policies_of

DESTINATIONS: Final = """
SELECT s.id, s.version + u.version, s.endpoint, u.id, u.headers, s.headers, s.signing_secret, 1 / s.rate_limit,
       s.output, s.half_open, CASE u.processing WHEN 'CONCURRENT' THEN u.concurrency ELSE 1 END,
       s.script <> '', s.overlap_ends_at > clock_timestamp(), p.id, p.version
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
  LEFT JOIN subscriptions_retrypolicy p ON p.id = s.retry_policy_id
 WHERE s.id = ANY(%s) AND s.is_sending AND u.status = 'ACTIVE'
"""

FORMER: Final = """
SELECT subscription_id, id, secret, extract(epoch FROM signs_until)::bigint FROM subscriptions_formersecret
 WHERE subscription_id = ANY(%s) AND signs_until > clock_timestamp() ORDER BY id DESC
"""
"""Read only where a secret was rotated lately."""
SCRIPTS: Final = "SELECT id, script FROM subscriptions_subscription WHERE id = ANY(%s)"

SCRIPT_CHARACTERS: Final = 8 * 1024 * 1024
"""Scripts kept although no line has them in hand."""


def destinations_of(subscription_ids: Collection[int]) -> dict[int, Destination]:
    """Return where each subscription's deliveries go now, by its id; one that is gone or not sending is missing."""
    if not subscription_ids:
        return {}
    configured = rows(DESTINATIONS, [sorted(subscription_ids)])
    policies = policies_of({policy_id: version for *_, policy_id, version in configured if policy_id})
    former = former_secrets_of([subscription_id for subscription_id, *_, overlaps, _, _ in configured if overlaps])
    found, scripted = {}, []
    for subscription_id, stamp, endpoint, *columns, has_script, _, policy_id, _ in configured:
        *sealed, spacing, output, half_open, strands = columns
        manner = Manner(policies.get(policy_id, TEAMFORGE_POLICY), spacing, output, half_open, strands)
        opened = Sealed._make((*sealed, former.get(subscription_id, ())))
        plain = destination_of(subscription_id, stamp, endpoint, opened, manner)
        if has_script and is_usable(plain):
            scripted.append(plain)
        else:
            found[plain.subscription_id] = plain
    return found | _scripts.added_to(scripted) if scripted else found


def former_secrets_of(subscription_ids: Collection[int]) -> dict[int, FormerSecrets]:
    """Return what signs for each subscription beside its present secret; of one for which nothing does, nothing.

    What was replaced after the rest was read comes with a stamp that is not in force any more, as a script does.
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
