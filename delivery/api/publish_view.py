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
    """The answer to a request that has been read; it is complete when what was read is published."""

    view: "PublishView"

    def __init__(
        self,
        submission: Submission,
        answer: Callable[[Sequence[Accepted]], HttpResponseBase],
        *,
        max_open: int | None = None,
        answer_apart: Callable[[NewMessage], HttpResponseBase] | None = None,
        is_volatile: bool = False,
    ) -> None:
        """Make an answer by `answer` when all is stored.

        `max_open` is how many messages of the publisher may have unfinished deliveries. An event of kind SYNC, or a
        volatile one, is not stored: `answer_apart` answers it, and may take long. A batch has none.
        """
        super().__init__()
        self.submission = submission
        self.max_open = max_open
        self.is_volatile = is_volatile
        self._answer = answer
        self._answer_apart = answer_apart
        self._make: Callable[[], HttpResponseBase]
        self.is_ready = True
        """Whether it can be completed at once: nothing has to be called first."""

    def is_apart(self, message: NewMessage) -> bool:
        """Return whether the message is not stored."""
        return message.kind == EventKind.SYNC or self.is_volatile

    def complete_with(self, result: Sequence[Accepted] | NewMessage | Exception) -> None:
        """Say what came of the submission: it is stored, or to be answered apart, or refused."""
        if isinstance(result, NewMessage):
            assert self._answer_apart  # noqa: S101 - what a batch may contain is stored
            self._make = partial(self._answer_apart, result)
            self.is_ready = False
        elif isinstance(result, Exception):
            self._make = partial(self._fail, result)
        else:
            self._make = partial(self._answer, result)

    def completed(self) -> Any:
        """Return the answer, which may take long if it is not `is_ready`."""
        view = self.view
        try:
            answer: Any = self._make()
        except Exception as failure:  # noqa: BLE001 - as DRF's dispatch
            answer = view.handle_exception(failure)
        return view.finalize_response(view.request, answer)

    def _fail(self, failure: Exception) -> HttpResponseBase:
        is_batch = self._answer_apart is None
        raise failure if is_batch or not isinstance(failure, RefusedItems) else failure.refusals[0]


class PublishView(APIView):
    """A view whose methods return a `DeferredAnswer`."""

    def finalize_response(self, request: Request, response: Any, *args: Any, **address: Any) -> Any:
        """Add headers, to a deferred answer when it is completed."""
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
            return answer.completed()
        return answer


def publish_all(answers: Sequence[DeferredAnswer]) -> None:
    """Check and store what all of them submit, so that they can be completed."""
    check = partial(check_together, max_bytes=settings.MAX_BODY_BYTES)
    stored: dict[DeferredAnswer, Publication] = {}
    for one, checked in zip(answers, together(check, [one.submission for one in answers]), strict=True):
        if isinstance(checked, Exception):
            one.complete_with(checked)
        elif len(checked) == 1 and one.is_apart(checked[0]):
            one.complete_with(checked[0])
        else:
            stored[one] = Publication(checked, one.max_open)
    for one, result in zip(stored, publish_together([*stored.values()], publish_terms()), strict=True):
        one.complete_with(result)
