"""Celery tasks: each takes ids, or a message that is not stored, and makes one call."""

from celery import Celery, Task, shared_task
from celery.exceptions import Ignore
from celery.signals import worker_ready, worker_shutdown
from celery.worker.consumer import Consumer
from django.conf import settings

from broker_project.core.encryption import keyring
from delivery.callbacks.address import callback_terms
from delivery.dispatch import notify, sweep
from delivery.maintenance import periodic
from delivery.volatile import publish_volatile, send_once
from delivery.volatile.publish_volatile import PURPOSE
from delivery.worker import process


def turn(self: "Task[..., str]", line_ids: list[int] | None = None) -> str:
    """Let this worker run these lines, or those woken on the task's queue, for one turn each (contract 4.14).

    The event loop sends the next turn of each line that it releases with more work: so the chain grows link by link.
    When it has let go of all of them, it reports to Celery what the task has done, which is running until then.
    """
    event_loop = _worker(self.app).wait_until_started()
    if event_loop is None:
        return "no lines: PostgreSQL does not answer"
    link = notify.Link(self.request.root_id, self.request.id, self.request.hostname)
    process.take_turn(self.name.removeprefix(notify.TURN), line_ids, event_loop, link)
    raise Ignore


for _queue in (notify.TOPIC, notify.RETRY, *settings.SENDER_QUEUES, notify.CALLBACKS):
    shared_task(bind=True, name=notify.TURN + _queue)(turn)


@shared_task(name=publish_volatile.TASK)
def send_volatile(envelope_id: str, encrypted: str) -> None:
    """Send a message that exists only in this task (contract 2.9)."""
    sender = send_once.get_sender(egress=settings.EGRESS_POLICY, max_in_flight=settings.VOLATILE_MAX_IN_FLIGHT)
    sender.open_and_send(envelope_id, encrypted, keyring(PURPOSE))


@shared_task(name="delivery.chores")
def do_chores() -> None:
    """Wake lines with due work and no worker, and run the periodic jobs, as every worker does each second."""
    sweep.wake_workers_of(sweep.due_lines())
    periodic.run_periodic_jobs()


@shared_task(name="delivery.maintain")
def maintain() -> None:
    """Make partitions ahead and drop those past retention."""
    periodic.maintain(
        keep_days=settings.RETENTION_DAYS,
        callback_days=settings.CALLBACK_DAYS,
        until_summarized=settings.SUMMARIES,
    )


@worker_ready.connect
def start_delivering(sender: Consumer, **_signal: object) -> None:
    """Run lines from the start, not from the first task on, unless the worker serves other queues only."""
    of_lines = {notify.TOPIC, notify.RETRY, notify.CALLBACKS}
    if any(queue in of_lines or queue.startswith("queue.") for queue in sender.app.amqp.queues.consume_from):
        _worker(sender.app)


@worker_shutdown.connect
def stop_delivering(**_signal: object) -> None:
    """Let requests in flight end and be settled."""
    process.stop()
    send_once.stop()


def _worker(app: Celery) -> process.Worker:
    """Return this process's worker; Celery changes `consume_from` in place when a queue is added or cancelled."""
    return process.worker(
        lambda: process.Worker(
            settings.WORKER_NAME,
            queues=app.amqp.queues.consume_from,
            keep_days=settings.RETENTION_DAYS,
            until_summarized=settings.SUMMARIES,
            queue_max_in_flight=settings.QUEUE_MAX_IN_FLIGHT,
            terms=callback_terms(),
            egress=settings.EGRESS_POLICY,
        )
    )
