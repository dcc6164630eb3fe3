"""The demo waits for its summary: what it says meanwhile, and why there is none."""

from django.db.models.functions import Now

from analytics.models import Run, RunKind, RunState, RunWindow, WindowState
from broker_project.stack.demo.summarize_demo import standing, why_not


def test_it_says_what_a_run_waits_for(db: None) -> None:
    waiting = Run.objects.create(kind=RunKind.HOURS)
    assert standing(waiting) == f"{waiting} waits for a worker of the queue analytics"
    other = Run.objects.create(kind=RunKind.DAYS, state=RunState.RUNNING, started_at=Now())
    assert standing(waiting) == f"{waiting} waits for {other}"


def test_it_says_how_far_a_run_is(db: None) -> None:
    run = Run.objects.create(kind=RunKind.HOURS, state=RunState.RUNNING, started_at=Now())
    assert standing(run) == f"{run} is under way: Spark starts, and reads"
    RunWindow.objects.create(run=run, start=Now(), end=Now(), state=WindowState.PASSED)
    assert standing(run) == f"{run} is under way, 1 of its windows done"


def test_without_a_summary_it_says_why(db: None) -> None:
    failed = Run.objects.create(kind=RunKind.HOURS, state=RunState.FAILED, error="There is no lake.")
    assert why_not(failed) == f"{failed} FAILED: There is no lake."
    never = Run.objects.create(kind=RunKind.HOURS)
    assert why_not(never) == f"no worker of the queue analytics has taken up {never} within 300 s"
