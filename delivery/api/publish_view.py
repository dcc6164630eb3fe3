"""The view of requests that publish: those that have come together are stored together.

Its methods read the request, and return a `DeferredAnswer`. Called by Django, the view publishes at once and returns
the answer itself. The web server calls it for several requests, and then publishes for all of them (`publish_all`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from rest_framework.request import Request
from rest_framework.views import APIView

from delivery.publish.check import Submission, check_together
from delivery.publish.errors import RefusedItems
from delivery.publish.publish import Publication, publish_terms, publish_together
from delivery.publish.store import Accepted, NewMessage
from delivery.publish.together import together
from subscriptions.models import EventKind

MAY_DEFER: Final = "broker.may_defer"
"""Where a request notes that its caller publishes."""


class DeferredAnswer(HttpResponse):
    """The answer to a request that has been read, while what was read is not published.

    `resolve` says what came of it. Then `made` makes the answer.
    """

    view: "PublishView"

    def __init__(
        self,
        submission: Submission,
        answer: Callable[[Sequence[Accepted]], HttpResponseBase],
        *,
        max_open: int | None = None,
        answer_unstored: Callable[[NewMessage], HttpResponseBase] | None = None,
        is_volatile: bool = False,
    ) -> None:
        """Make the answer with `answer` when all is stored.

        `max_open` is how many messages of the publisher may have unfinished deliveries. `answer_unstored` answers an
        event of kind SYNC, or a volatile one, and may take long; None: it is a batch, which has neither.
        """
        super().__init__()
        self.submission = submission
        self.max_open = max_open
        self._is_volatile = is_volatile
        self._answer = answer
        self._answer_unstored = answer_unstored
        self._result: Sequence[Accepted] | NewMessage | Exception = ()

    def is_stored(self, messages: Sequence[NewMessage]) -> bool:
        """Return whether these messages, which it submits, are stored before they are sent."""
        return self._answer_unstored is None or not (self._is_volatile or messages[0].kind == EventKind.SYNC)

    def resolve(self, result: Sequence[Accepted] | NewMessage | Exception) -> None:
        """Say what came of the submission: answers, a message that is not stored, or why it is refused."""
        is_batch = self._answer_unstored is None
        self._result = result.refusals[0] if isinstance(result, RefusedItems) and not is_batch else result

    @property
    def is_slow(self) -> bool:
        """Whether making the answer may take long: something else has to be asked first."""
        return isinstance(self._result, NewMessage)

    def made(self) -> Any:
        """Make the answer, as DRF does."""
        view = self.view
        try:
            answer: Any = self._made()
        except Exception as failure:  # noqa: BLE001 - as DRF's dispatch
            answer = view.handle_exception(failure)
        return view.finalize_response(view.request, answer)

    def _made(self) -> HttpResponseBase:
        result = self._result
        if isinstance(result, Exception):
            raise result
        if isinstance(result, NewMessage):
            assert self._answer_unstored  # noqa: S101 - what a batch has is stored
            return self._answer_unstored(result)
        return self._answer(result)


class PublishView(APIView):
    """A view whose methods return a `DeferredAnswer`."""

    def finalize_response(self, request: Request, response: Any, *args: Any, **address: Any) -> Any:
        """Add headers; to a deferred answer when it is made."""
        if isinstance(response, DeferredAnswer):
            return response
        return super().finalize_response(request, response, *args, **address)

    def dispatch(self, request: HttpRequest, *args: Any, **address: Any) -> Any:
        """Read the request, and publish unless the caller does."""
        answer: HttpResponseBase = super().dispatch(request, *args, **address)
        if not isinstance(answer, DeferredAnswer):
            return answer
        answer.view = self
        if MAY_DEFER not in request.META:
            publish_all([answer])
            return answer.made()
        return answer


def publish_all(answers: Sequence[DeferredAnswer]) -> None:
    """Check and store what all of them submit, so that they can be made."""
    check = partial(check_together, max_bytes=settings.MAX_BODY_BYTES)
    stored: dict[DeferredAnswer, Publication] = {}
    for one, checked in zip(answers, together(check, [one.submission for one in answers]), strict=True):
        if isinstance(checked, Exception):
            one.resolve(checked)
        elif one.is_stored(checked):
            stored[one] = Publication(checked, one.max_open)
        else:
            one.resolve(checked[0])
    for one, result in zip(stored, publish_together([*stored.values()], publish_terms()), strict=True):
        one.resolve(result)
