"""Where endpoints post the results of QUEUE messages (contract 6.8 to 6.10)."""

from typing import Any, Final

from django.conf import settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from broker_project.core.api.parsing import RawParser, body_of
from delivery.api import problems as _problems  # noqa: F401 - says what the use cases' exceptions mean
from delivery.callbacks.reply import UnknownCallback, reply
from subscriptions.api.rate_limits import count_failure, refuse_guessing

TOKENS: Final = "tokens"
"""What is guessed at."""
UNNAMED: Final = "application/octet-stream"
"""The content type of a reply that says none."""


class ReplyTaken(serializers.Serializer[Any]):
    """What is answered to a reply."""

    id = serializers.IntegerField(help_text="The reply's id: it is a message.")


class Reply(APIView):
    """The address in the `CallbackURL` header of a QUEUE request: its token is the key, no other is asked for."""

    authentication_classes = ()
    permission_classes = ()
    parser_classes = [RawParser]

    @extend_schema(
        operation_id="reply_to_callback",
        auth=[],
        request={"application/json": OpenApiTypes.ANY, "*/*": OpenApiTypes.BINARY},
        responses={201: ReplyTaken, 200: ReplyTaken},
    )
    def post(self, request: Request, token: str) -> Response:
        """Take the result, once: 201, the same again 200 with the same id, another 409, too late 410.

        Answered once it is durable. It is then posted to the publisher's CallbackURL until that takes it.
        """
        refuse_guessing(request, at=TOKENS)
        try:
            taken = reply(
                token,
                body_of(request, limit=settings.MAX_BODY_BYTES),
                request.META.get("CONTENT_TYPE") or UNNAMED,
                list(request.headers.items()),
                days=settings.CALLBACK_DAYS,
            )
        except UnknownCallback:
            count_failure(request, at=TOKENS)
            raise
        return Response({"id": taken.id}, status.HTTP_201_CREATED if taken.is_new else status.HTTP_200_OK)
