"""Metrics for Prometheus, and the alert rules and the dashboard that use them."""

import datetime as dt
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from prometheus_client.parser import text_string_to_metric_families

from analytics import live_numbers
from analytics.alert_rules import BEAT_SEEN, COUNTED, MIN_GROWN, SECONDS_BEFORE, AlertName, AlertThresholds
from analytics.api import metrics
from analytics.models import ClockDifference, Run, RunState
from broker_project.core.database_clock import MAX_DIFFERENCE_SECONDS
from broker_project.stack.folders import ROOT
from delivery.limits import MAX_DUE
from delivery.models import Hold, MinuteTotal
from subscriptions.models import EventKind
from tests.integration.analytics.test_live_numbers import minute, waiting
from tests.support import broker, factories
from tests.support.api import client_of

pytestmark = pytest.mark.django_db

RULES: Path = ROOT / "docs/reference/prometheus/alerts.yml"
DASHBOARD: Path = ROOT / "docs/reference/prometheus/grafana.json"
with_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
ACCEPTED = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.2"


@pytest.fixture(autouse=True)
def _one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "listening_workers", lambda: ["worker-1"])


def scraped(accepted: str = ACCEPTED) -> dict[tuple[str, str], float]:
    """Return each value by its metric's name and its label's value."""
    answer = client_of().get("/api/v1/metrics", headers={"Accept": accepted})
    assert (answer.status_code, answer["Content-Type"].partition(";")[0]) == (200, "text/plain")
    families = text_string_to_metric_families(answer.content.decode())
    return {
        (sample.name, "".join(sample.labels.values())): sample.value for family in families for sample in family.samples
    }


def fill() -> None:
    shop, idle = (factories.subscription(factories.subscriber(name)) for name in ("shop", "idle"))
    first, _ = waiting(shop, 2, created_at=timezone.now() - dt.timedelta(minutes=10))
    why = {"reason": "no answer: SSL certificate problem", "failures": 1, "since": first.created_at}
    Hold.objects.create(delivery=first, line=broker.line_of(shop.subscriber), **why)
    minute(0, of=idle, took={100: 9}, failed=1)
    MinuteTotal.objects.update(due=7)
    every = IntervalSchedule.objects.create(every=30, period="seconds")
    PeriodicTask.objects.create(name="do chores", interval=every, last_run_at=timezone.now())
    Run.objects.create(state=RunState.FAILED, started_at=timezone.now(), ended_at=timezone.now())
    ClockDifference.objects.create(process="host-1", ahead_seconds=-600)
    work = factories.event_type("Shop.Work", EventKind.QUEUE)
    factories.subscription(event_type=work)
    broker.publish_bodies(work, b"1")


def test_an_empty_broker_has_metrics() -> None:
    found = scraped("text/plain")
    assert (found["broker_workers", ""], found["broker_held_lines", ""]) == (1, 0)


def test_metrics_say_what_the_dashboard_says() -> None:
    fill()
    found = scraped()
    assert found["broker_last_minute_deliveries", "delivered"] == 9
    assert found["broker_last_minute_deliveries", "failed"] == 1
    assert found["broker_last_minute_latency_seconds", "0.95"] == pytest.approx(0.1, rel=0.02)
    assert found["broker_waiting_deliveries", "shop"] == 2
    assert 600 <= found["broker_oldest_waiting_seconds", "shop"] < 700
    assert ("broker_waiting_deliveries", "idle") not in found
    assert sum(value for (name, _), value in found.items() if name == "broker_waiting_groups") == 1
    ones = ("broker_held_lines", "broker_workers", "broker_redis_up", "broker_last_summary_failed")
    assert [found[name, ""] for name in ones] == [1, 1, 1, 1]
    assert (found["broker_last_hour_failed_ratio", "idle"], found["broker_clock_doubted", ""]) == (0.1, 0)
    assert (found["broker_due_deliveries", ""], found["broker_beat_seen_seconds", ""] < 60) == (7, True)
    assert 600 <= found["broker_longest_hold_seconds", "tls"] < 700
    assert found["broker_clock_ahead_seconds", "host-1"] == -600


@pytest.mark.behaviour("11.8")
def test_ages_are_by_the_databases_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    fill()
    right = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: right() + dt.timedelta(hours=1))
    found = scraped()
    assert 600 <= found["broker_oldest_waiting_seconds", "shop"] < 700
    assert 600 <= found["broker_longest_hold_seconds", "tls"] < 700
    assert found["broker_beat_seen_seconds", ""] < 60


def test_a_minute_that_is_being_counted_again_has_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    newest = timezone.now().replace(second=0, microsecond=0)
    monkeypatch.setattr(live_numbers, "last_minute", lambda: newest)
    assert "broker_due_deliveries" not in {name for name, _ in scraped()}


def rules_by_name() -> dict[str, dict[str, str]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"].removeprefix("Broker"): rule for rule in group["rules"]}


@pytest.mark.behaviour("11.8")
def test_rules_for_prometheus_are_those_of_the_alerts() -> None:
    rules, thresholds = rules_by_name(), AlertThresholds()
    assert [*rules] == ["Down", *AlertName]
    assert {name: int(rules[name].get("for", "0s").rstrip("s")) for name in AlertName} == {
        name: SECONDS_BEFORE.get(name, 0) for name in AlertName
    }
    numbers = {name: re.findall(r"(?:>=?|==) (?:bool )?([\d.]+)", rules[name]["expr"]) for name in AlertName}
    assert numbers == {
        AlertName.DELIVERY_WAITS: [f"{thresholds.waiting_seconds}"],
        AlertName.LINE_BLOCKED: [f"{thresholds.blocked_seconds}"],
        AlertName.TLS_FAILS: [f"{thresholds.blocked_seconds}"],
        AlertName.DELIVERIES_FAIL: [f"{thresholds.failed_percent / 100}"],
        AlertName.BACKLOG_GROWS: ["0", f"{MAX_DUE}", "0", f"{MIN_GROWN}"],
        AlertName.WITHOUT_WORKERS: ["0"],
        AlertName.WITHOUT_REDIS: ["0"],
        AlertName.WITHOUT_BEAT: [f"{BEAT_SEEN.total_seconds():.0f}"],
        AlertName.NUMBERS_LATE: [f"{COUNTED.total_seconds() - 60:.0f}"],
        AlertName.SUMMARY_FAILED: ["1"],
        AlertName.CLOCK_JUMPED: ["1"],
        AlertName.CLOCK_DIFFERS: [f"{MAX_DIFFERENCE_SECONDS:.0f}"],
    }
    assert f"[{thresholds.growing_minutes}m:1m]" in rules[AlertName.BACKLOG_GROWS]["expr"]


def test_rules_and_dashboard_use_only_metrics_that_there_are() -> None:
    fill()
    rules = [rule["expr"] for rule in rules_by_name().values()]
    panels = [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
    used = set(re.findall(r"broker_\w+", " ".join([*rules, *panels])))
    assert used == {name for name, _ in scraped()}


@with_promtool
def test_prometheus_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", RULES], check=True)


@with_promtool
@pytest.mark.behaviour("11.8")
@pytest.mark.parametrize(
    ("after", "fires"),
    [("2800+100x9", True), ("2200-100x9", False), ("900+1x9", False)],
    ids=["grows on", "falls", "is small"],
)
def test_a_firing_backlog_outlasts_a_restart_until_a_number_says_otherwise(
    after: str, fires: bool, tmp_path: Path
) -> None:
    annotations = {"summary": "More deliveries are due with every minute"}
    alert = {"exp_labels": {"severity": "warning"}, "exp_annotations": annotations}
    minutes = {f"{half * 30}s": [alert] for half in range(24, 36)} | {"20m": [alert] * fires, "27m": [alert] * fires}
    story = {
        "interval": "1m",
        "input_series": [{"series": "broker_due_deliveries", "values": f"1000+100x12 stale _x4 {after}"}],
        "alert_rule_test": [
            {"eval_time": time, "alertname": "BrokerBacklogGrows", "exp_alerts": alerts}
            for time, alerts in minutes.items()
        ],
    }
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": [story]}))
    subprocess.run(["promtool", "test", "rules", file], check=True)
