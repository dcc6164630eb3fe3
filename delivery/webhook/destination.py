"""Where deliveries go, and how they are sent and signed."""

import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

import structlog
from django.core.exceptions import ValidationError

from broker_project.core import encryption
from broker_project.core.db import rows
from delivery.http.transfer import UNUSABLE
from delivery.retry import CALLBACK_POLICY, TEAMFORGE_POLICY, CompiledRetryPolicy, policy_of
from delivery.webhook.content import merged
from subscriptions.credentials.tokens import key_of
from subscriptions.endpoints import DEFAULT_METHOD, DEFAULT_TIMEOUT_SECONDS, Endpoint, is_scripted, parse_endpoint
from subscriptions.payload_format import PayloadFormat
from subscriptions.retry_policies import TERMS, terms_of

CONFIGURED: Final = """s.id, s.version + u.version, s.endpoint, u.id, u.headers, s.headers, s.signing_secret, s.output,
       s.diverted_since IS NOT NULL, s.overlap_ends_at > clock_timestamp(), u.name"""
"""The columns of `Configured`, of a subscription `s` and its subscriber `u`."""
DESTINATIONS: Final = f"""
SELECT p.id, p.version, s.script <> '', 1 / s.rate_limit, s.half_open,
       CASE WHEN u.processing <> 'SERIAL' THEN u.concurrency ELSE 1 END,
       u.processing = 'KEYED' AND u.concurrency > 1, s.timeout_seconds, {CONFIGURED}
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
  LEFT JOIN subscriptions_retrypolicy p ON p.id = s.retry_policy_id
 WHERE s.id = ANY(%s) AND s.is_sending AND u.status = 'ACTIVE'
"""
POLICIES: Final = f"SELECT id, version, {', '.join(TERMS)} FROM subscriptions_retrypolicy WHERE id = ANY(%s)"
FORMER: Final = """
SELECT subscription_id, id, secret, extract(epoch FROM signs_until)::bigint FROM subscriptions_formersecret
 WHERE subscription_id = ANY(%s) AND signs_until > clock_timestamp() ORDER BY id DESC
"""
"""Read only for subscriptions whose secret was rotated recently."""
SCRIPTS: Final = "SELECT id, script FROM subscriptions_subscription WHERE id = ANY(%s)"

ORIGINALS: Final = """
SELECT l.id, c.url FROM delivery_line l JOIN delivery_callback c ON c.id = l.callback_id WHERE l.id = ANY(%s)
"""

NEVER_CONFIGURED: Final = 0
"""The config version of a reply's destination: the URL that was published, which nobody changes."""

SCRIPT_CHARACTERS: Final = 8 * 1024 * 1024
"""Scripts that stay in memory although no line uses them."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Destination:
    """Where one subscription's deliveries go, as configured at `config_version`; equal only to itself."""

    subscription_id: int
    config_version: int
    """Sum of the subscription's and the subscriber's version: changes whenever either does."""
    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """The subscriber's, overridden by the subscription's."""
    signing_key: bytes = b""
    """Empty: not signed. So are replies to callbacks, whose receivers have no secret of ours."""
    script: str = ""
    """JavaScript that makes what is sent; empty: the message is sent as it is."""
    policy: CompiledRetryPolicy = TEAMFORGE_POLICY
    spacing: float | None = None
    """Minimum seconds between two requests; None: no rate limit (contract 1.4)."""
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    """How long its endpoint may take for an answer (contract 4.8)."""
    output: str = PayloadFormat.AS_PUBLISHED
    """The payload format (contract 2.12)."""
    half_open: bool = False
    """Whether it is suspended and probed with the next delivery (contract 5.6)."""
    is_diverted: bool = False
    """Whether its endpoint hangs, and the retry line tries it (contract 5.10)."""
    concurrency: int = 1
    """How many requests its subscriber's main line may have in flight (contract 4.13)."""
    is_keyed: bool = False
    """Whether of these no two have the same ordering key (contract 4.18)."""
    former_keys: tuple[tuple[bytes, int], ...] = ()
    """Keys that sign too, each until a time in Unix seconds."""
    subscriber: str = ""
    """Its name; empty: it is the reply to a callback."""


class Configured(NamedTuple):
    """A subscription's configuration, as stored; secret values are encrypted."""

    subscription_id: int
    config_version: int
    endpoint: str
    subscriber_id: int
    subscriber_headers: bytes
    own_headers: bytes
    secret: bytes
    output: str
    is_diverted: bool
    has_former_secrets: bool
    subscriber: str


class FormerSecret(NamedTuple):
    """A replaced signing secret that still signs."""

    id: int
    encrypted: bytes
    signs_until: int
    """In Unix seconds."""


_latest: WeakValueDictionary[int, Destination] = WeakValueDictionary()
"""The destinations without script that were loaded last, by subscription."""


def destinations_of(versions: Mapping[int, int | None]) -> dict[int, Destination]:
    """Return where subscriptions' deliveries go, by id: at this config version if it is in memory, otherwise now.

    One that is gone or not sending is missing.
    """
    known = {
        subscription_id: destination
        for subscription_id, version in versions.items()
        if (destination := _latest.get(subscription_id)) and destination.config_version == version
    }
    unknown = versions.keys() - known.keys()
    found = rows(DESTINATIONS, [sorted(unknown)]) if unknown else ()
    loaded = [(columns[:8], Configured._make(columns[8:])) for columns in found]
    policies = policies_of({policy_id: version for (policy_id, version, *_), _ in loaded if policy_id})
    former = former_secrets_of([one.subscription_id for _, one in loaded if one.has_former_secrets])
    scripted: list[Destination] = []
    for (policy_id, _, has_script, spacing, half_open, concurrency, is_keyed, timeout_seconds), configured in loaded:
        destination = destination_of(
            configured,
            former.get(configured.subscription_id, ()),
            policies.get(policy_id, TEAMFORGE_POLICY),
            spacing,
            half_open=half_open,
            concurrency=concurrency,
            is_keyed=is_keyed,
            timeout_seconds=timeout_seconds,
        )
        if has_script and is_usable(destination):
            scripted.append(destination)
        else:
            known[configured.subscription_id] = _latest[configured.subscription_id] = destination
    return known | _scripts.added_to(scripted) if scripted else known


def destination_now(columns: Sequence[Any], script: str) -> Destination:
    """Return where a subscription's calls and test events go, read as `CONFIGURED`, with its script."""
    configured = Configured._make(columns)
    subscription_id, config_version, endpoint, *_ = configured
    if is_scripted(endpoint):
        return Destination(subscription_id, config_version, DEFAULT_METHOD, endpoint, script=script)
    former = former_secrets_of([subscription_id]) if configured.has_former_secrets else {}
    destination = destination_of(configured, former.get(subscription_id, ()))
    return replace(destination, script=script) if script and is_usable(destination) else destination


@lru_cache(maxsize=16_384)
def destination_of(
    configured: Configured,
    former: tuple[FormerSecret, ...],
    policy: CompiledRetryPolicy = TEAMFORGE_POLICY,
    spacing: float | None = None,
    *,
    half_open: bool = False,
    concurrency: int = 1,
    is_keyed: bool = False,
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
) -> Destination:
    """Return where a subscription's requests go, without its script: the same object for the same configuration.

    If it is unusable, nothing can be sent: its line is held under every policy, and no delivery is given up.
    """
    headers: Mapping[str, str] = {}
    key = b""
    former_keys: tuple[tuple[bytes, int], ...] = ()
    try:
        endpoint = parse_endpoint(configured.endpoint)
        headers = merged(
            json.loads(
                _decrypted(encryption.SUBSCRIBER_HEADERS, configured.subscriber_headers, configured.subscriber_id)
            ),
            json.loads(_decrypted(encryption.SUBSCRIPTION_HEADERS, configured.own_headers, configured.subscription_id)),
        )
        key = key_of(_decrypted(encryption.SIGNING_SECRET, configured.secret, configured.subscription_id).decode())
        former_keys = tuple(_former_keys(configured.subscription_id, former))
    except ValidationError as refused:
        reason = " ".join(refused.messages)
        log.error("subscription.unusable", subscription_id=configured.subscription_id, reason=reason)  # noqa: TRY400
        endpoint, headers, policy = Endpoint(DEFAULT_METHOD, f"{UNUSABLE}{reason}"), {}, TEAMFORGE_POLICY
    return Destination(
        subscription_id=configured.subscription_id,
        config_version=configured.config_version,
        method=endpoint.method,
        url=endpoint.url,
        subscriber=configured.subscriber,
        headers=headers,
        signing_key=key,
        policy=policy,
        spacing=spacing,
        timeout_seconds=timeout_seconds,
        output=configured.output,
        half_open=half_open,
        is_diverted=configured.is_diverted,
        concurrency=concurrency,
        is_keyed=is_keyed,
        former_keys=former_keys,
    )


def is_usable(destination: Destination) -> bool:
    """Return whether requests can be sent there; if not, no script is run for it either."""
    return not destination.url.startswith(UNUSABLE)


def _former_keys(subscription_id: int, former: Collection[FormerSecret]) -> Iterator[tuple[bytes, int]]:
    """Yield the keys of former secrets; one that cannot be decrypted does not stop the present one."""
    for secret in former:
        try:
            yield key_of(_decrypted(encryption.FORMER_SECRET, secret.encrypted, secret.id).decode()), secret.signs_until
        except ValidationError as refused:
            reason = " ".join(refused.messages)
            log.error("subscription.former_secret_unusable", subscription_id=subscription_id, reason=reason)  # noqa: TRY400


def _decrypted(purpose: str, encrypted: bytes, row_id: int) -> bytes:
    try:
        return encryption.keyring(purpose).decrypt(encrypted, encryption.place_of(row_id))
    except encryption.DecryptionFailed:
        raise ValidationError(f"the {purpose} cannot be decrypted: their secret key is gone; set them again") from None


_policies: dict[int, tuple[int, CompiledRetryPolicy]] = {}
"""By id, with its version."""


def policies_of(versions: Mapping[int, int]) -> dict[int, CompiledRetryPolicy]:
    """Return the policies, given with their versions, by id; deleted policies are missing.

    A policy that has just been changed may be newer than its version. Then its subscriptions have a new config version
    too, and deliveries read under the old one are not sent.
    """
    unknown = [policy_id for policy_id, version in versions.items() if _policies.get(policy_id, (None,))[0] != version]
    for policy_id, version, *columns in rows(POLICIES, [sorted(unknown)]) if unknown else ():
        _policies[policy_id] = version, policy_of(terms_of(dict(zip(TERMS, columns, strict=True))))
    return {policy_id: _policies[policy_id][1] for policy_id in versions if policy_id in _policies}


def former_secrets_of(subscription_ids: Collection[int]) -> dict[int, tuple[FormerSecret, ...]]:
    """Return the former secrets that still sign, by subscription, the newest first.

    One that was replaced after the rest was read belongs to a newer config version, as with a script.
    """
    found: dict[int, tuple[FormerSecret, ...]] = {}
    for subscription_id, *columns in rows(FORMER, [sorted(subscription_ids)]) if subscription_ids else ():
        found[subscription_id] = (*found.get(subscription_id, ()), FormerSecret._make(columns))
    return found


class _Scripts:
    """The destinations with scripts that were used last: scripts are large, so each is read once. For all threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Destination, Destination] = OrderedDict()
        """By the destination without its script."""
        self._characters = 0
        self._lock = threading.Lock()

    def added_to(self, plain: Collection[Destination]) -> dict[int, Destination]:
        """Return the destinations with their scripts, by subscription; deleted ones are missing.

        A script that has just been changed belongs to a newer config version: nothing is sent after it.
        """
        found: dict[int, Destination] = {}
        with self._lock:
            for destination in plain:
                if scripted := self._kept.get(destination):
                    self._kept.move_to_end(destination)
                    found[destination.subscription_id] = scripted
        unknown = {one.subscription_id: one for one in plain if one.subscription_id not in found}
        for subscription_id, script in rows(SCRIPTS, [sorted(unknown)]) if unknown else ():
            found[subscription_id] = self._keep(unknown[subscription_id], sys.intern(script))
        return found

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


def original_addresses(line_ids: Collection[int]) -> dict[int, Destination]:
    """Return where the reply in each callback's line goes, by line: the CallbackURL that was published."""
    found = rows(ORIGINALS, [sorted(line_ids)]) if line_ids else ()
    return {line_id: _original(url) for line_id, url in found}


@lru_cache(maxsize=1024)
def _original(url: str) -> Destination:
    return Destination(0, NEVER_CONFIGURED, DEFAULT_METHOD, url, policy=CALLBACK_POLICY)
