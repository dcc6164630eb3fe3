"""What clients say of messages that they have fetched, by receipt: done, not done, still at it (behaviour 9.2, 9.4)."""

from functools import partial
from typing import Final

from django.urls import URLPattern, path
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from delivery.api.own_mailboxes import MailboxView
from delivery.api.receipts import RESPONSES, ProlongedSerializer, ReceiptsSerializer, ReturnedSerializer, answer
from delivery.mailbox.answering import acknowledge, extend, give_back


class Acknowledge(MailboxView):
    """Messages that are done."""

    @extend_schema(operation_id="acknowledge_messages", request=ReceiptsSerializer, responses=RESPONSES)
    def post(self, request: Request, name: str) -> Response:
        """End them as DELIVERED; doing so twice changes nothing, and is answered alike."""
        mailbox, given = self.mailbox(request, name), self.given(request, ReceiptsSerializer)
        return answer(given, mailbox.subscriber_id, acknowledge)


class GiveBack(MailboxView):
    """Messages that are not done."""

    @extend_schema(operation_id="return_messages", request=ReturnedSerializer, responses=RESPONSES)
    def post(self, request: Request, name: str) -> Response:
        """Make them available again at once; end those whose redeliveries are used up, unless nobody has tried."""
        mailbox, given = self.mailbox(request, name), self.given(request, ReturnedSerializer)
        return answer(given, mailbox.subscriber_id, partial(give_back, not_attempted=given["not_attempted"]))


class Prolong(MailboxView):
    """Messages that take longer."""

    @extend_schema(operation_id="prolong_messages", request=ProlongedSerializer, responses=RESPONSES)
    def post(self, request: Request, name: str) -> Response:
        """Keep them in flight for so many seconds from now on; never for less than they are anyway."""
        mailbox, given = self.mailbox(request, name), self.given(request, ProlongedSerializer)
        seconds = given.get("seconds", mailbox.ack_seconds)
        return answer(given, mailbox.subscriber_id, partial(extend, seconds=seconds))


urlpatterns: Final[list[URLPattern]] = [
    path("mailboxes/<name:name>/ack", Acknowledge.as_view()),
    path("mailboxes/<name:name>/nack", GiveBack.as_view()),
    path("mailboxes/<name:name>/extend", Prolong.as_view()),
]
