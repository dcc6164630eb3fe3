"""Celery tasks: ids in, or a message that has none, and one call each."""

from celery import Task, shared_task
from celery.signals import worker_ready, worker_shutdown
from celery.worker.consumer import Consumer
from django.conf import settings

from broker_project.core.encryption import keyring
from delivery.callbacks.address import callback_terms
from delivery.dispatch import notify
from delivery.dispatch import sweep as dispatch_sweep
from delivery.maintenance import periodic
from delivery.publish import idempotency
from delivery.volatile import publish_volatile, send_once
from delivery.volatile.publish_volatile import PURPOSE
from delivery.worker import process, run_lines


@shared_task(bind=True, name=notify.TURN)
def turn(self: "Task[..., None]", queue: str, line_ids: list[int] | None = None) -> None:
    """Drive the lines of this run, or those woken on `queue`; hand the unfinished to the next link (contract 4.14).

    The chain grows by one link as long as there is work: assigning `request.chain` costs a third of `replace`, and a
    chain of fixed length would travel whole in every link.
    """
    driver = _worker().wait_until_started()
    lines = line_ids or notify.woken_lines(queue)
    unfinished = run_lines.run_lines(lines, driver) if driver and lines else []
    if unfinished:
        self.request.chain = [  # type: ignore[assignment]  # the stubs say str
            turn.si(queue, unfinished).set(queue=queue)
        ]


@shared_task(name=publish_volatile.TASK)
def send_volatile(envelope_id: str, encrypted: str) -> None:
    """Send a message that exists only in this task (contract 2.9)."""
    sender = send_once.running_sender(egress=settings.EGRESS_POLICY, max_in_flight=settings.VOLATILE_MAX_IN_FLIGHT)
    sender.open_and_send(envelope_id, encrypted, keyring(PURPOSE))


@shared_task(name="delivery.sweep")
def sweep() -> None:
    """Wake lines with due work that nobody drives: the second pair of eyes."""
    for queue, due in dispatch_sweep.due_by_queue().items():
        notify.wake_regardless(queue, due)


@shared_task(name="delivery.attend")
def attend() -> None:
    """Do once what becomes due by the clock alone, as every worker does."""
    periodic.run_periodic_jobs()


@shared_task(name="delivery.maintain")
def maintain() -> None:
    """Make partitions ahead, drop what is past its time."""
    periodic.maintain(keep_days=settings.RETENTION_DAYS, until_summarized=settings.SUMMARIES)


@shared_task(name="delivery.forget_idempotency_keys")
def forget_idempotency_keys() -> None:
    """Delete idempotency keys whose time is over."""
    idempotency.forget_expired()


@worker_ready.connect
def start_delivering(sender: Consumer, **_signal: object) -> None:
    """Drive lines from the start, not from the first task on: earlier work may be waiting.

    Not in a worker that was started for other queues only.
    """
    if any(map(_is_of_lines, sender.app.amqp.queues.consume_from)):
        _worker()


@worker_shutdown.connect
def stop_delivering(**_signal: object) -> None:
    """Let the requests under way end and be settled."""
    process.stop()
    send_once.stop()


def _is_of_lines(queue: str) -> bool:
    return queue in {notify.TOPIC, notify.RETRY, notify.CALLBACKS} or queue.startswith("queue.")


def _worker() -> process.Worker:
    return process.worker(
        settings.WORKER_NAME,
        keep_days=settings.RETENTION_DAYS,
        until_summarized=settings.SUMMARIES,
        queue_max_in_flight=settings.QUEUE_MAX_IN_FLIGHT,
        terms=callback_terms(),
        egress=settings.EGRESS_POLICY,
    )
