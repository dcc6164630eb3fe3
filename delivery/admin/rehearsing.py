"""Sending a subscription's endpoint a test event from its page in the admin."""

import secrets
from typing import Any, Final

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone

from broker_project.core.admin.theme import action, after_dialog, dialog
from delivery.admin.backfilling import BackfillingAdmin
from delivery.playground.test_events import ID_BYTES, NothingToSendTo, Rehearsed, rehearse, rehearsing_caller
from delivery.sync.failures import TooManyCalls
from subscriptions.endpoints import SCRIPTED
from subscriptions.models import DeliveryMode

MOST_SHOWN: Final = 300
"""Characters of the answer: what is said on the next page is kept until then."""
SENDING = "Its endpoint gets the event type's sample at once, marked as a test; nothing of it is stored."


class RehearsingAdmin(BackfillingAdmin):
    """Subscriptions, whose endpoints can be sent a test event."""

    actions_detail = (*BackfillingAdmin.actions_detail, "send_test_event")

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer it only where something is sent."""
        offered = super().get_actions_detail(request, object_id)
        sent = self.only(object_id).filter(delivery_mode=DeliveryMode.PUSH).exclude(endpoint__startswith=SCRIPTED)
        return offered if sent.exists() else [one for one in offered if one.path != "send_test_event"]

    @action(
        description="Send test event",
        permissions=["change"],
        icon="outgoing_mail",
        dialog=dialog("Send a test event?", SENDING, "Send"),
    )
    def send_test_event(self, request: HttpRequest, _form: object, object_id: str) -> HttpResponse:
        """Send one, and say what came back."""
        subscription = get_object_or_404(self.only(object_id).select_related("event_type"))
        caller, random_bytes = rehearsing_caller(settings.REACH), secrets.token_bytes(ID_BYTES)
        try:
            rehearsed = rehearse(subscription, caller=caller, random_bytes=random_bytes, now=timezone.now())
            level = messages.SUCCESS if rehearsed.is_taken else messages.ERROR
            in_full = request.user.has_perm("delivery.view_payload")
            self.message_user(request, _told(rehearsed, in_full=in_full), level)
        except (NothingToSendTo, TooManyCalls) as refused:
            self.message_user(request, str(refused), messages.WARNING)
        return after_dialog(request, self.page_of(object_id))


def _told(rehearsed: Rehearsed, *, in_full: bool) -> str:
    if rehearsed.status_code is None:
        return f"No answer after {rehearsed.duration_ms} ms: {rehearsed.reason}"
    answered = f"Answered {rehearsed.status_code} after {rehearsed.duration_ms} ms"
    excerpt = rehearsed.answer_excerpt.decode("utf-8", "replace")[:MOST_SHOWN]
    return f"{answered}: {excerpt}" if excerpt and in_full else f"{answered}."
