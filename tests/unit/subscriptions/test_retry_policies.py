"""The installed retry policies, and which terms go together."""

import math
from dataclasses import asdict, replace
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from subscriptions.retry_policies import PRESETS, TEAMFORGE, TERMS, Action, OnExhausted, check_terms, terms_of

HOLD, ASIDE, APART, END = Action.HOLD, Action.DEFER, Action.RETRY_LANE, Action.END


@pytest.mark.behaviour("5.1")
@pytest.mark.parametrize(
    ("name", "actions", "end", "delays"),
    [
        ("TeamForge", (END, END, END, HOLD, ASIDE, HOLD), (None, OnExhausted.NEVER), (1, 2, 60)),
        ("Workfront", (APART, APART, APART, APART, APART, APART), (12, OnExhausted.FAIL), (600, 1, 600)),
        ("webMethods", (END, END, END, HOLD, END, HOLD), (5, OnExhausted.REJECT), (10, 1, 10)),
        ("Standard-Webhooks", (END, APART, END, APART, APART, APART), (8, OnExhausted.FAIL), (300, 1, 86_400)),
    ],
)
def test_the_actions_retries_and_delays_of_each_preset(
    name: str, actions: tuple[Action, ...], end: tuple[int | None, OnExhausted], delays: tuple[float, float, float]
) -> None:
    says = PRESETS[name]
    kinds = ("redirect", "throttled", "client_error", "unavailable", "server_error", "no_answer")
    assert tuple(getattr(says, f"on_{kind}") for kind in kinds) == actions
    assert (says.max_retries, says.on_exhausted) == end
    assert (says.initial_delay_seconds, says.factor, says.max_delay_seconds) == delays
    check_terms(says)


def test_there_are_four_presets_and_the_first_is_the_default() -> None:
    assert [*PRESETS] == ["TeamForge", "Workfront", "webMethods", "Standard-Webhooks"]
    assert PRESETS["TeamForge"] is TEAMFORGE


@pytest.mark.behaviour("5.3")
def test_standard_webhooks_retries_eight_times_in_75_hours_and_respects_retry_after() -> None:
    says = PRESETS["Standard-Webhooks"]
    minutes = [pause / 60 for pause in says.schedule]
    assert minutes == [5, 30, 2 * 60, 5 * 60, 10 * 60, 14 * 60, 20 * 60, 24 * 60]
    assert (len(says.schedule), sum(minutes)) == (says.max_retries, 75 * 60 + 35)
    assert says.respect_retry_after


@pytest.mark.parametrize(
    "terms",
    [
        {"initial_delay_seconds": 0.1, "max_delay_seconds": 0.1, "factor": 1.0},
        {"initial_delay_seconds": 604_800.0, "max_delay_seconds": 604_800.0, "factor": 10.0, "jitter": 0.5},
        {"max_retries": 0, "on_exhausted": OnExhausted.SUSPEND, "probe_seconds": 1.0},
        {"max_retries": 1_000, "on_exhausted": OnExhausted.REJECT, "probe_seconds": 86_400.0},
        {"schedule": (60.0,) * 100},
    ],
)
def test_terms_at_their_limits_are_accepted(terms: dict[str, Any]) -> None:
    check_terms(replace(TEAMFORGE, **terms))


@pytest.mark.parametrize(
    ("terms", "refused", "says"),
    [
        ({"initial_delay_seconds": 0.09}, {"initial_delay_seconds"}, "from 0.1 to 604800"),
        ({"initial_delay_seconds": 0.0}, {"initial_delay_seconds"}, "from 0.1 to 604800"),
        ({"initial_delay_seconds": math.nan}, {"initial_delay_seconds"}, "from 0.1 to 604800"),
        ({"max_delay_seconds": 604_801.0}, {"max_delay_seconds"}, "from 0.1 to 604800"),
        ({"max_delay_seconds": math.inf}, {"max_delay_seconds"}, "from 0.1 to 604800"),
        ({"max_delay_seconds": 0.5}, {"max_delay_seconds"}, "no shorter than the first"),
        ({"schedule": (1.0, 61.0)}, {"max_delay_seconds"}, "each of the schedule"),
        ({"schedule": (1.0, 0.0)}, {"schedule"}, "Each pause is from 0.1"),
        ({"schedule": (1.0, math.nan)}, {"schedule"}, "Each pause is from 0.1"),
        ({"schedule": (1.0,) * 101}, {"schedule"}, "at most 100 pauses"),
        ({"factor": 0.9}, {"factor"}, "from 1 to 10"),
        ({"factor": 11.0}, {"factor"}, "from 1 to 10"),
        ({"jitter": -0.1}, {"jitter"}, "from 0 to 0.5"),
        ({"jitter": 1.0}, {"jitter"}, "from 0 to 0.5"),
        ({"max_retries": 3}, {"on_exhausted"}, "what happens after the last retry"),
        ({"on_exhausted": OnExhausted.FAIL}, {"max_retries"}, "after how many retries"),
        ({"max_retries": 1_001, "on_exhausted": OnExhausted.FAIL}, {"max_retries"}, "from 0 to 1000"),
        ({"max_retries": -1, "on_exhausted": OnExhausted.FAIL}, {"max_retries"}, "from 0 to 1000"),
        ({"max_retries": 1, "on_exhausted": OnExhausted.SUSPEND, "probe_seconds": 0.0}, {"probe_seconds"}, "from 1 to"),
        ({"probe_seconds": 86_401.0}, {"probe_seconds"}, "from 1 to 86400"),
        ({"factor": 0.0, "jitter": 2.0}, {"factor", "jitter"}, "from 0 to 0.5"),
    ],
)
def test_invalid_terms_are_reported_by_field(terms: dict[str, Any], refused: set[str], says: str) -> None:
    with pytest.raises(ValidationError) as raised:
        check_terms(replace(TEAMFORGE, **terms))
    assert raised.value.message_dict.keys() == refused
    assert says in " ".join(raised.value.messages)


@pytest.mark.parametrize("name", PRESETS)
def test_stored_terms_are_read_back(name: str) -> None:
    stored = {key: [*value] if key == "schedule" else value for key, value in asdict(PRESETS[name]).items()}
    plain = {key: str(value) if key.startswith(("on_", "in_")) else value for key, value in stored.items()}
    assert terms_of(plain) == PRESETS[name]
    assert stored.keys() == set(TERMS)


@pytest.mark.parametrize("unknown", [{"on_redirect": "IGNORE"}, {"on_exhausted": "PERHAPS"}])
def test_unknown_actions_and_ends_are_refused(unknown: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="is not a valid"):
        terms_of({**asdict(TEAMFORGE), **unknown})
