"""Who gets a message: found by index, and the same as if every subscription had been looked at (contract 2.2)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from django.db import transaction
from hypothesis import given
from hypothesis import strategies as st

from delivery.publish.store import NewMessage
from subscriptions import lookup_keys, matching
from subscriptions.edit import change
from subscriptions.filters import FilterFailed, document, explain, parse_filter, text_at
from subscriptions.matching import MAX_PATHS, PATIENCE, matching_subscriptions
from subscriptions.models import EventKind, EventType, Status, Subscription
from subscriptions.names import patterns_of
from tests.support import factories
from tests.support.database import forget_filters
from tests.support.query_plans import ExplainedStatement, explained_statements

pytestmark = pytest.mark.django_db

LONG = "x" * 3000
STATE, TEAM = "$$->'Body'->>'state'", "$$->'Header'->'X-Team'->>0"
EVENTS = {"A": "TOPIC", "A.B": "TOPIC", "A.B.C": "TOPIC", "B": "TOPIC", "A.Q": "QUEUE", "A.S": "SYNC"}
PATTERNS = ["*", "A.*", "A.B.*", "B.*"]
FILTERS = [
    "",
    f"{STATE} = 'open'",
    f"{STATE} = 'shut'",
    f"{STATE} = '1'",
    f"{STATE} = '{LONG}'",
    f"{STATE} = 'open' AND {TEAM} = 'blue'",
    f"{STATE} = 'open' OR {TEAM} = 'blue'",
    f"{TEAM} = 'blue'",
    f"NOT {STATE} = 'open'",
    f"{STATE} is null",
    f"{STATE} in ('open', 'shut')",
    "$$->'Body'->'a'->>0 = 'open'",
    "$$->'Body'->>'größe' = 'ü\x01'",
    "$$->'Body'->>'n' = '1' AND $$->'Body'->'n' < '2'",
]
BODIES = [
    *({"state": state} for state in ("open", "shut", 1, None, LONG, "\ud800", "\0", ["open"], "open\x01")),
    *({"a": ["open"]}, {"größe": "ü\x01"}, {"n": 1}, {}, [], "open"),
]
FILTER_STRINGS = ["", "eu", "EU", LONG]


@dataclass(frozen=True)
class Wish:
    """A subscription to be made."""

    events: str
    subscriber: int
    filter: str
    header_filter_string: str
    status: Status
    position: int


@pytest.fixture(autouse=True)
def _nothing_learned_yet() -> None:
    forget_filters()


wishes = st.builds(
    Wish,
    st.sampled_from([*EVENTS, *PATTERNS]),
    st.integers(0, 2),
    st.sampled_from(FILTERS),
    st.sampled_from(FILTER_STRINGS),
    st.sampled_from([Status.ACTIVE, Status.ACTIVE, Status.INACTIVE]),
    st.integers(0, 1),
)
published = st.tuples(
    st.sampled_from([*EVENTS]),
    st.sampled_from([json.dumps(body).encode() for body in BODIES]),
    st.sampled_from([None, *FILTER_STRINGS[1:]]),
    st.sampled_from([[], [("x-team", "blue")], [("X-Team", "red"), ("X-Team", "blue")]]),
)


def new(event_type: EventType, body: bytes = b"{}", filter_string: str | None = None, **fields: object) -> NewMessage:
    return factories.message(event_type, body, filter_string=filter_string, **fields)


def matched(*messages: NewMessage) -> list[list[int]]:
    return [[match.subscription_id for match in matches] for matches in matching_subscriptions(messages)]


def qualifies(one: Subscription, message: NewMessage) -> bool:
    """Say it as the contract does, of one subscription."""
    patterns = patterns_of(message.event_type) if message.kind == EventKind.TOPIC else ()
    return (
        one.status == one.subscriber.status == Status.ACTIVE
        and (one.event_type_id == message.event_type_id or one.event_pattern in patterns)
        and one.header_filter_string in {"", message.filter_string}
        and (not one.filter or parse_filter(one.filter).matches(message.document))
    )


def looked_at_one_by_one(messages: Sequence[NewMessage]) -> list[list[int]]:
    everything = [*Subscription.objects.select_related("subscriber").order_by("subscriber", "position", "id")]
    return [[one.pk for one in everything if qualifies(one, message)] for message in messages]


def arranged(wanted: Sequence[Wish]) -> dict[str, EventType]:
    event_types = {name: factories.event_type(name, EventKind(kind)) for name, kind in EVENTS.items()}
    subscribers = [factories.subscriber(status=status) for status in ("ACTIVE", "ACTIVE", "INACTIVE")]
    for wish in wanted:
        fields = {name: value for name, value in vars(wish).items() if name not in {"events", "subscriber"}}
        events = {"event_pattern": wish.events} if wish.events in PATTERNS else {}
        factories.subscription(subscribers[wish.subscriber], event_types.get(wish.events), **fields, **events)
    return event_types


@pytest.mark.behaviour("2.2", "1.9")
@given(st.lists(wishes, max_size=12), st.lists(published, min_size=1, max_size=5), st.booleans())
def test_the_index_finds_the_same_as_evaluating_every_subscription(
    wanted: list[Wish], messages: list[tuple[str, bytes, str | None, list[tuple[str, str]]]], forgetful: bool
) -> None:
    with transaction.atomic():
        event_types = arranged(wanted)
        batch = [new(event_types[name], body, text, headers=headers) for name, body, text, headers in messages]
        if forgetful:
            forget_filters()
        assert matched(*batch) == looked_at_one_by_one(batch)
        assert matched(*batch) == [matched(one)[0] for one in batch]
        transaction.set_rollback(True)


def many(count: int, event_type: EventType, **fields: str) -> list[Subscription]:
    """Store many subscriptions of one subscriber; each field may name the number of its own."""
    owner = factories.subscriber()
    return Subscription.objects.bulk_create(
        Subscription(
            subscriber=owner,
            event_type=event_type,
            endpoint="http://127.0.0.1:9/",
            **{name: text.format(number) for name, text in fields.items()},
        )
        for number in range(count)
    )


def read(statements: list[ExplainedStatement]) -> list[int]:
    """Return how many rows came back each time candidates were looked up."""
    return [int(one.plan["Plan"]["Actual Rows"]) for one in statements if one.statement == matching.CANDIDATES]


@pytest.mark.behaviour("2.2")
@pytest.mark.parametrize("same", ["filter", "header_filter_string"])
def test_of_many_subscriptions_only_those_that_may_match_are_read(same: str, monkeypatch: pytest.MonkeyPatch) -> None:
    event_type = factories.event_type()
    texts = {"filter": f"{STATE} = '{{}}' AND {TEAM} is null", "header_filter_string": "{}"}
    made = many(300, event_type, **{same: texts[same]})
    message = new(event_type, b'{"state": "7"}', "7")
    with explained_statements(monkeypatch) as statements:
        assert matched(message, message) == [[made[7].pk]] * 2
        assert matched(message) == [[made[7].pk]]
    assert read(statements) == ([300, 1, 1] if same == "filter" else [1, 1])


def test_more_paths_than_are_looked_up_are_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    event_type = factories.event_type()
    made = many(MAX_PATHS + 10, event_type, filter="$$->'Body'->>'k{0}' = '{0}'")
    with explained_statements(monkeypatch) as statements:
        for _ in range(2):
            assert matched(new(event_type, b'{"k3": 3, "k40": 40, "k41": "x"}')) == [[made[3].pk, made[40].pk]]
    known = sorted(one.filter_term for one in made)[:MAX_PATHS]
    evaluated = 10 + sum(one.filter_term in known for one in (made[3], made[40]))
    assert read(statements) == [42, evaluated, evaluated]


def test_unused_paths_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    event_type = factories.event_type()
    many(MAX_PATHS, event_type, filter="$$->'Body'->>'a{0}' = '{0}'")
    assert matched(new(event_type)) == [[]]
    made = many(50, event_type, filter=f"{STATE} = '{{}}'")
    message = new(event_type, b'{"state": "7"}')
    with explained_statements(monkeypatch) as statements:
        for _ in range(PATIENCE + 1):
            assert matched(message) == [[made[7].pk]]
    assert read(statements) == [50] * (PATIENCE - 1) + [2] * 3


def test_a_path_that_another_thread_has_overwritten_is_learned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    event_type = factories.event_type()
    many(40, event_type, filter=f"{STATE} = '{{}}'")
    assert len(matched(new(event_type, b'{"state": "7"}'))[0]) == 1
    former = dict(matching._known)
    made = many(20, event_type, filter=f"{TEAM} = '{{}}'")
    message = new(event_type, headers=[("X-Team", "7")])
    assert matched(message) == [[made[7].pk]]
    matching._known.update(former)  # as by a thread that learned before this one and stored what it knew after it
    with explained_statements(monkeypatch) as statements:
        for _ in range(2):
            assert matched(message) == [[made[7].pk]]
    assert read(statements) == [20, 1, 1]


@pytest.mark.behaviour("3.7")
def test_a_change_counts_from_the_next_publish_on() -> None:
    event_type = factories.event_type()
    one = factories.subscription(event_type=event_type, filter=f"{STATE} = 'open'")
    is_open, is_shut = new(event_type, b'{"state": "open"}'), new(event_type, b'{"state": "shut"}')
    assert matched(is_open, is_shut) == [[one.pk], []]
    change(Subscription.objects.filter(pk=one.pk), changes={"filter": f"{STATE} = 'shut'"})
    assert matched(is_open, is_shut) == [[], [one.pk]]
    assert Subscription.objects.get().filter_term
    Subscription.objects.update(filter=f"{STATE} = 'open'")
    assert matched(is_open, is_shut) == [[one.pk], []]
    assert not Subscription.objects.get().filter_term
    other = factories.subscription(one.subscriber, event_type, filter=f"{TEAM} = 'blue'")
    assert matched(is_open, new(event_type, headers=[("X-Team", "blue")])) == [[one.pk], [other.pk]]


@pytest.mark.behaviour("2.2")
def test_a_body_is_parsed_once_for_all_filters_and_not_at_all_without() -> None:
    event_type, plain = factories.event_type(), factories.event_type()
    factories.subscription(event_type=plain, header_filter_string="eu")
    unread = new(plain, b'{"state": ')
    assert len(matched(unread, new(plain, b"?", "eu"))) == 2
    assert "document" not in vars(unread)
    for number in range(5):
        factories.subscription(event_type=event_type, filter=f"{STATE} != '{number}'")
    message = new(event_type, b'{"state": "open"}')
    assert len(matched(message)[0]) == 5
    assert message.document.body is message.document.body


@pytest.mark.behaviour("3.6")
@pytest.mark.parametrize("stored", [f"{STATE} < $$->'Body'->'n'->>0", "no filter at all"])
def test_a_filter_that_fails_is_a_match_with_the_reason(stored: str) -> None:
    event_type = factories.event_type()
    one = factories.subscription(event_type=event_type)
    Subscription.objects.update(filter=stored)
    (matches,) = matching_subscriptions([new(event_type, b'{"n": ' + b"[" * 5000 + b"]" * 5000 + b"}")])
    (match,) = matches
    assert (match.subscription_id, match.subscriber_id) == (one.pk, one.subscriber_id)
    assert match.failure.startswith("filter failed: ")


@pytest.mark.behaviour("3.6")
@pytest.mark.parametrize("constant", ["open", "open" + LONG], ids=["looked up", "too long to be looked up"])
def test_a_filter_that_cannot_be_true_does_not_fail(constant: str) -> None:
    event_type = factories.event_type()
    one = factories.subscription(event_type=event_type, filter=f"{STATE} = '{constant}' AND $$->'Body'->'n' > '0'")
    hopeless = [b'{"n": 1e200000}', b'{"n": 1e200000, "state": "shut"}']
    assert matched(*(new(event_type, body) for body in hopeless)) == [[], []]
    ((match,),) = matching_subscriptions([new(event_type, b'{"n": 1e200000, "state": "%s"}' % constant.encode())])
    assert (match.subscription_id, match.failure[:14]) == (one.pk, "filter failed:")


@pytest.mark.behaviour("3.6")
def test_if_a_value_cannot_be_read_all_filters_on_it_fail() -> None:
    event_type = factories.event_type()
    made = many(3, event_type, filter=f"{STATE} = '{{}}'")
    assert matched(new(event_type, b'{"state": "1"}')) == [[made[1].pk]]
    message = new(event_type, b"[" * 5000 + b"]" * 5000)
    with pytest.raises(FilterFailed):
        text_at(message.document, STATE)
    assert [match.failure[:14] for match in matching_subscriptions([message])[0]] == ["filter failed:"] * 3


@pytest.mark.behaviour("3.6")
def test_the_filters_of_a_batch_share_one_limit_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_WORK", 10_000)
    event_type, work = factories.event_type(), document.Work()
    (one,) = many(1, event_type, filter="$$->'Body'->'a' = '[]'")
    plain = factories.subscription(event_type=event_type)
    batch = [replace(new(event_type, b'{"a": [%s]}' % (b" " * 3000)), work=work) for _ in range(5)]
    failures = [
        [(match.subscription_id, bool(match.failure)) for match in matches] for matches in matching_subscriptions(batch)
    ]
    assert failures == [[(one.pk, False), (plain.pk, False)]] * 3 + [[(one.pk, True), (plain.pk, False)]] * 2


@pytest.mark.behaviour("3.6")
def test_an_explanation_agrees_with_the_index_if_a_term_fails() -> None:
    event_type = factories.event_type()
    one = factories.subscription(event_type=event_type, filter=f"{STATE} = 'a' AND $$->'Body'->>'n' > '5'")
    message = new(event_type, b'{"n": 1e400000}')
    for _ in range(2):
        assert matched(message) == [[]]
        assert explain(parse_filter(one.filter), message.document).result == "null"


def test_long_filter_strings_are_found_and_not_kept() -> None:
    event_type = factories.event_type()
    one = factories.subscription(event_type=event_type, header_filter_string=LONG)
    before = [cache.cache_info().currsize for cache in (lookup_keys._plain, lookup_keys._range)]
    assert matched(*(new(event_type, b"{}", text) for text in (LONG, LONG, LONG + "x"))) == [[one.pk], [one.pk], []]
    after = [cache.cache_info().currsize for cache in (lookup_keys._plain, lookup_keys._range)]
    assert after == [before[0], before[1] + 1]
