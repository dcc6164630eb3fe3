"""The addresses of publishing and of what became of it, below `/api/v1/`: first what is asked for most."""

from django.urls import path

from delivery.api import dead_letters, mailboxes, pauses, receipts, replays, resubmit
from delivery.api.callbacks import Callbacks
from delivery.api.deliveries import Deliveries
from delivery.api.explanations import ExplanationOfMessage
from delivery.api.lines import CancelDeliveries, LineOfSubscriber
from delivery.api.messages import Messages
from delivery.api.pauses import SendTestEvent
from delivery.api.publish import Publish, PublishBatch
from delivery.api.queues import Senders
from delivery.api.replays import BackfillSubscription
from delivery.api.replies import Reply
from delivery.api.resubmit import ReleaseDelivery
from delivery.api.trials import AnyFilters, AnyScript, FiltersOfSubscription, ScriptOfSubscription

urlpatterns = [
    path("events", PublishBatch.as_view()),
    path("events/<str:event_type>", Publish.as_view()),
    *mailboxes.urlpatterns,
    *receipts.urlpatterns,
    path("messages", Messages.as_view({"get": "list"})),
    path("messages/<int:id>", Messages.as_view({"get": "retrieve"}), name="message"),
    path("messages/<int:id>/explanation", ExplanationOfMessage.as_view()),
    path("deliveries", Deliveries.as_view({"get": "list"})),
    path("deliveries/<int:id>", Deliveries.as_view({"get": "retrieve"}), name="delivery"),
    path("deliveries/<int:id>/release", ReleaseDelivery.as_view()),
    path("callbacks", Callbacks.as_view({"get": "list"})),
    path("callbacks/<int:id>", Callbacks.as_view({"get": "retrieve"})),
    path("callbacks/<str:token>", Reply.as_view()),
    path("senders", Senders.as_view()),
    path("subscribers/<name:name>/line", LineOfSubscriber.as_view()),
    path("subscriptions/<int:id>/cancel-deliveries", CancelDeliveries.as_view()),
    path("subscriptions/<int:id>/backfill", BackfillSubscription.as_view()),
    path("subscriptions/<int:id>/send-test-event", SendTestEvent.as_view()),
    path("subscriptions/<int:id>/test-filter", FiltersOfSubscription.as_view()),
    path("filters/test", AnyFilters.as_view()),
    path("subscriptions/<int:id>/test-script", ScriptOfSubscription.as_view()),
    path("scripts/test", AnyScript.as_view()),
    *resubmit.urlpatterns,
    *replays.urlpatterns,
    *dead_letters.urlpatterns,
    *pauses.urlpatterns,
]
