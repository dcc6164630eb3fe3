"""Lists of deliveries, from which one gets to a replay of what they show."""

from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse

from broker_project.core.admin.read_only import ReadOnlyAdmin, is_id
from broker_project.core.admin.theme import action
from delivery.models import Delivery, Line
from delivery.replay.eligibility import REPLAYABLE

Listed = TypeVar("Listed", bound=Delivery)

STATUS: Final = ("status__exact", "reason")
"""What lists are narrowed by to some statuses."""


class ReplayableAdmin(ReadOnlyAdmin[Listed]):
    """Deliveries, of which many can be sent again."""

    actions_list: ClassVar[tuple[str, ...]] = ("replay_these",)

    def has_replay_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may send things again."""
        return request.user.has_perm("delivery.replay")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list; its actions are told what it is narrowed to."""
        answer: HttpResponse = super().changelist_view(request, extra_context)
        for offered in (getattr(answer, "context_data", None) or {}).get("actions_list", ()):
            offered["path"] += f"?{request.GET.urlencode()}"
        return answer

    @action(description="Replay these", permissions=["replay"], icon="replay")
    def replay_these(self, request: HttpRequest) -> HttpResponse:
        """Lead to the form, with what the list was narrowed to."""
        return HttpResponseRedirect(replay_address(**_wanted(request.GET)))


def replay_address(**wanted: object) -> str:
    """Return the address of the form of replays, filled in so."""
    return f"{reverse('admin:delivery_replay_new_replay')}?{urlencode(wanted)}"


def _wanted(narrowed: QueryDict) -> dict[str, object]:
    found: dict[str, object] = {}
    lines = Line.objects.filter(pk=_id_in(narrowed, "line__id__exact") or 0).values_list("subscriber", flat=True)
    if subscription_id := _id_in(narrowed, "subscription__id__exact"):
        found["subscription"] = subscription_id
    elif subscriber_id := lines.first():
        found["subscriber"] = subscriber_id
    statuses = {narrowed.get(name) for name in STATUS} & {*map(str, REPLAYABLE)}
    return found | ({"statuses": statuses.pop()} if statuses else {})


def _id_in(narrowed: QueryDict, name: str) -> int | None:
    text = narrowed.get(name) or ""
    return int(text) if is_id(text) else None
