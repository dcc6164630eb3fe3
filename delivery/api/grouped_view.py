"""A view whose requests are answered in groups: what those that have come together ask for is done together.

Its methods read the request, and return a `DeferredAnswer`. Called by Django, the view does at once what was asked, and
returns the answer itself. The web server calls it for several requests, and then does all of it (`resolve_all`).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from django.http import HttpRequest, HttpResponseBase
from rest_framework.request import Request
from rest_framework.views import APIView

from delivery.publish.together import TakesLong, together

Asked = TypeVar("Asked")
Result = TypeVar("Result")

MAY_DEFER: Final = "broker.may_defer"
"""Where a request notes that its caller resolves the answer."""


class DeferredAnswer(Generic[Asked, Result]):
    """The answer to a request that has been read, while what it asks for is not done.

    `resolve` says what came of it. Then `made` makes the answer.
    """

    view: "GroupedView"

    def __init__(
        self,
        act: Callable[[Sequence[Asked]], Sequence[Result | Exception]],
        asked: Asked,
        answer: Callable[[Result], HttpResponseBase],
        *,
        is_slow: Callable[[Result], bool] = lambda _: False,
    ) -> None:
        """Do with `act` what this and others have `asked` for, and answer with `answer`.

        `is_slow` tells for which results `answer` may take long.
        """
        self.act = act
        self.asked = asked
        self._answer = answer
        self._is_slow = is_slow
        self._result: Result | Exception

    def resolve(self, result: Result | Exception) -> None:
        """Say what came of it: a result, or why it is refused."""
        self._result = result

    @property
    def failure(self) -> Exception | None:
        """Why it is refused."""
        return self._result if isinstance(self._result, Exception) else None

    @property
    def is_slow(self) -> bool:
        """Whether making the answer may take long: something else has to be waited for first."""
        return self.takes_long if isinstance(self._result, Exception) else self._is_slow(self._result)

    @property
    def takes_long(self) -> bool:
        """Whether what it asks for has not been done with the others; making the answer does it."""
        return isinstance(self._result, TakesLong)

    def made(self) -> Any:
        """Make the answer, as DRF does."""
        view = self.view
        try:
            answer: Any = self._made()
        except Exception as failure:  # noqa: BLE001 - as DRF's dispatch
            answer = view.handle_exception(failure)
        return view.finalize_response(view.request, answer)

    def _made(self) -> HttpResponseBase:
        if self.takes_long:
            (self._result,) = together(self.act, [self.asked])
        if isinstance(self._result, Exception):
            raise self._result
        return self._answer(self._result)


class GroupedView(APIView):
    """A view whose methods return a `DeferredAnswer`."""

    def finalize_response(self, request: Request, response: Any, *args: Any, **address: Any) -> Any:
        """Add headers; to a deferred answer when it is made."""
        if isinstance(response, DeferredAnswer):
            return response
        return super().finalize_response(request, response, *args, **address)

    def dispatch(self, request: HttpRequest, *args: Any, **address: Any) -> Any:
        """Read the request, and do what it asks for unless the caller does."""
        answer: Any = super().dispatch(request, *args, **address)
        if not isinstance(answer, DeferredAnswer):
            return answer
        answer.view = self
        if MAY_DEFER not in request.META:
            resolve_all([answer])
            return answer.made()
        return answer


def resolve_all(answers: Sequence[DeferredAnswer[Any, Any]]) -> None:
    """Do what all of them ask for, so that they can be made."""
    for act in dict.fromkeys(one.act for one in answers):
        alike = [one for one in answers if one.act == act]
        for one, result in zip(alike, together(act, [one.asked for one in alike]), strict=True):
            one.resolve(result)
