"""Secrets in the admin: the page that shows one is the answer itself.

Nothing keeps it then: no session or cookie, as a message for the next page would, no history, no log and no cache.
"""

from typing import ClassVar, Final

from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from subscriptions.admin.configured import ConfiguredAdmin, Record

TO_SHOW: Final = "_shown_once"
"""Where a record that is being added has its secret until it is answered."""
SHOWN_ONCE: Final = {"Cache-Control": "no-store"}


class ShowingOnceAdmin(ConfiguredAdmin[Record]):
    """Records with a secret each, which is shown when it is made, and never again."""

    shown_name: ClassVar[str]
    """What people call it."""
    shown_advice: ClassVar[str]
    """What they are to do with it."""

    def show_when_added(self, record: Record, secret: str) -> None:
        """Let the answer to the form that adds `record` show its secret; for `create`."""
        vars(record)[TO_SHOW] = secret

    def response_add(self, request: HttpRequest, obj: Record, post_url_continue: str | None = None) -> HttpResponse:  # noqa: ARG002
        """Show the secret, whatever was to be done next."""
        return self.shown(request, obj, vars(obj).pop(TO_SHOW))

    def asked(
        self, request: HttpRequest, record: Record, question: str, form: Form | None = None
    ) -> HttpResponse | None:
        """Return the page that asks whether to make a new one, and how; None once that is confirmed: make it."""
        if request.method == "POST" and "confirmed" in request.POST and (form is None or form.is_valid()):
            return None
        context = {
            **self.admin_site.each_context(request),
            "title": question,
            "chosen": [record],
            "form": form,
            "back": self.page_of(record.pk),
            "opts": self.opts,
        }
        return TemplateResponse(request, "subscriptions/confirm.html", context)

    def shown(self, request: HttpRequest, record: Record, secret: str) -> HttpResponse:
        """Return the page that shows the secret."""
        context = {
            **self.admin_site.each_context(request),
            "title": f"{record}: its {self.shown_name}",
            "secret": secret,
            "advice": self.shown_advice,
            "back": self.page_of(record.pk),
            "opts": self.opts,
        }
        return TemplateResponse(request, "subscriptions/shown_once.html", context, headers=SHOWN_ONCE)
