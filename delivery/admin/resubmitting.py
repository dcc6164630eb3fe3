"""Resubmitting a delivery in the admin: once more, with its body or another (behaviour 5.8)."""

from typing import Any, ClassVar, Final

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from broker_project.core.admin.theme import UnfoldAdminTextareaWidget, action, for_code, page_of
from delivery.admin.contents import SHOWN_BYTES, may_see_contents
from delivery.admin.releasing import ReleasingAdmin
from delivery.models import Delivery, Message
from delivery.publish.errors import Refusal
from delivery.replay.eligibility import RESUBMITTABLE
from delivery.replay.resubmit import Edit, NoLongerKept, NotResubmittable, resubmit

REFUSED: Final = (NotResubmittable, NoLongerKept, Refusal)
BODY_HELP: Final = "As it is: sent again. Changed: judged as if it were published, and stored as a message of its own."


class BodyForm(forms.Form):
    """The body that is sent."""

    body = forms.CharField(required=False, strip=False, widget=UnfoldAdminTextareaWidget({"rows": 16}))

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["body"].help_text = BODY_HELP
        for_code(self.fields["body"].widget)


class ResubmittingAdmin(ReleasingAdmin):
    """Deliveries, of which those that came to nothing can be sent again."""

    actions_detail: ClassVar[tuple[str, ...]] = (*ReleasingAdmin.actions_detail, "resubmit")

    def has_resubmit_permission(self, request: HttpRequest, object_id: object = None) -> bool:  # noqa: ARG002 - unfold's
        """Tell whether the user may send things again."""
        return request.user.has_perm("delivery.replay")

    def get_actions_detail(self, request: HttpRequest, object_id: int) -> list[Any]:
        """Offer it only of what can be."""
        offered: list[Any] = super().get_actions_detail(request, object_id)
        if Delivery.objects.filter(pk=object_id, status__in=RESUBMITTABLE).exists():
            return offered
        return [one for one in offered if one.path != "resubmit"]

    @action(description="Resubmit", permissions=["resubmit"], icon="replay")
    def resubmit(self, request: HttpRequest, object_id: str) -> HttpResponse:  # noqa: ARG002 - unfold's signature
        """Lead to the form."""
        return HttpResponseRedirect(reverse("admin:delivery_delivery_resubmission", args=[object_id]))

    def get_urls(self) -> list[URLPattern]:
        """Return the form's address too."""
        view = self.admin_site.admin_view(self.resubmission)
        return [path("<int:pk>/resubmission/", view, name="delivery_delivery_resubmission"), *super().get_urls()]

    def resubmission(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Show the body, and send it again once that is confirmed."""
        if not self.has_resubmit_permission(request) or not self.has_view_permission(request):
            raise PermissionDenied
        old = get_object_or_404(Delivery, pk=pk)
        text = _text_of(old) if may_see_contents(request) else None
        form = BodyForm(request.POST or None, initial={"body": text})
        if request.method == "POST" and form.is_valid():
            try:
                return self._resubmit(request, old, _edit(text, form.cleaned_data["body"]))
            except REFUSED as refused:
                form.add_error(None, str(refused))
        context = {
            **self.admin_site.each_context(request),
            **page_of(self, f"Resubmit delivery {pk}"),
            "form": form,
            "delivery": old,
            "is_editable": text is not None,
        }
        return TemplateResponse(request, "delivery/resubmission.html", context)

    def _resubmit(self, request: HttpRequest, old: Delivery, edit: Edit | None) -> HttpResponse:
        new_id = resubmit(old.pk, edit=edit, most_bytes=settings.MAX_BODY_BYTES, senders=settings.QUEUE_SENDERS)
        self.log_change(request, old, f"Resubmitted as {new_id}{', its body edited' if edit else ''}.")
        self.message_user(request, f"This delivery repeats {old.pk}.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:delivery_delivery_change", args=[new_id]))


def _text_of(delivery: Delivery) -> str | None:
    """Return the body as it can be edited in a browser; None where it cannot."""
    message = Message.objects.only("body", "size").filter(pk=delivery.message_id or 0).first()
    if message is None or message.size > SHOWN_BYTES:
        return None
    try:
        return bytes(message.body).decode()
    except UnicodeDecodeError:
        return None


def _edit(text: str | None, given: str) -> Edit | None:
    """Return what was changed, None for nothing: browsers send other ends of lines than they were given."""
    return None if text is None or _lines(given) == _lines(text) else Edit(_lines(given).encode())


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
