"""The addresses of publishing, messages and deliveries, below `/api/v1/`; the most frequent ones first."""

from django.urls import path

from delivery.api import dry_run, mailboxes, operations, publish, receipts, replays, trials
from delivery.api.callbacks import Callbacks, Reply
from delivery.api.deliveries import DeadLetters, Deliveries, count_dead_letters, read_attempt
from delivery.api.lines import list_senders, read_line
from delivery.api.messages import Messages

urlpatterns = [
    path("events/<str:event_type>", publish.publish_event),
    path("events", publish.publish_batch),
    path("events/<str:event_type>/dry-run", dry_run.dry_run_event),
    path("mailboxes/<name:name>/next", mailboxes.fetch_messages),
    path("mailboxes/<name:name>/status", mailboxes.read_mailbox),
    path("mailboxes/<name:name>/purge", mailboxes.purge_mailbox),
    path("mailboxes/<name:name>/ack", receipts.acknowledge_messages),
    path("mailboxes/<name:name>/nack", receipts.return_messages),
    path("mailboxes/<name:name>/extend", receipts.extend_messages),
    path("messages", Messages.as_view({"get": "list"})),
    path("messages/<message_id:id>", Messages.as_view({"get": "retrieve"}), name="message"),
    path("messages/<message_id:id>/explanation", trials.explain_message),
    path("messages/<message_id:id>/resubmit", replays.resubmit_message),
    path("deliveries", Deliveries.as_view({"get": "list"})),
    path("deliveries/<delivery_id:id>", Deliveries.as_view({"get": "retrieve"}), name="delivery"),
    path("deliveries/<delivery_id:id>/attempts/<int:number>", read_attempt),
    path("deliveries/<delivery_id:id>/release", operations.release_delivery),
    path("deliveries/<delivery_id:id>/try-now", operations.try_delivery_now),
    path("deliveries/<delivery_id:id>/resubmit", replays.resubmit_delivery),
    path("dead-letters", DeadLetters.as_view({"get": "list"})),
    path("dead-letters/counts", count_dead_letters),
    path("callbacks", Callbacks.as_view({"get": "list"})),
    path("callbacks/<int:id>", Callbacks.as_view({"get": "retrieve"})),
    path("callbacks/<str:token>", Reply.as_view()),
    path("senders", list_senders),
    path("subscribers/<name:name>/line", read_line),
    path("subscribers/<name:name>/pause", operations.pause_subscriber),
    path("subscribers/<name:name>/resume", operations.resume_subscriber),
    path("subscriptions/<int:id>/pause", operations.pause_subscription),
    path("subscriptions/<int:id>/resume", operations.resume_subscription),
    path("subscriptions/<int:id>/cancel-deliveries", operations.cancel_deliveries),
    path("subscriptions/<int:id>/send-test-event", operations.send_test_event),
    path("subscriptions/<int:id>/backfill", replays.backfill_subscription),
    path("subscriptions/<int:id>/test-filter", trials.test_filter_of_subscription),
    path("subscriptions/<int:id>/test-script", trials.test_script_of_subscription),
    path("filters/test", trials.test_filter),
    path("scripts/test", trials.test_script),
    path("replays", replays.Replays.as_view({"get": "list", "post": "create"})),
    path("replays/<int:id>", replays.Replays.as_view({"get": "retrieve"}), name="replay"),
    path("replays/<int:id>/cancel", replays.cancel_replay),
]
