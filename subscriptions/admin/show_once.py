"""Secrets in the admin: the page that shows one is the answer itself.

Nothing keeps it then: no session or cookie, as a message for the next page would, no history, no log and no cache.
To reload that page is to send its form again, which makes nothing a second time.
"""

import hashlib
from typing import Any, ClassVar, Final

from django.contrib import messages
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from subscriptions.admin.configured import ConfiguredAdmin, Record

TO_SHOW: Final = "_shown_once"
"""Where a record that is being added has its secret until it is answered."""
SPENT: Final = "spent_forms"
"""Where a session has which forms have made something in it."""
MAX_SPENT: Final = 100
"""So many are remembered, the newest: nobody reloads older pages, and a session stays small."""
DONE: Final = "This very form was sent before, and nothing was made again: open it anew for another one."
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

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Show and take the form, that which made something no second time: then the list tells what there is."""
        if is_spent(request):
            self.message_user(request, DONE, messages.WARNING)
            return HttpResponseRedirect(reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"))
        return super().add_view(request, form_url, extra_context)  # type: ignore[no-any-return]

    def response_add(self, request: HttpRequest, obj: Record, post_url_continue: str | None = None) -> HttpResponse:  # noqa: ARG002
        """Show the secret, whatever was to be done next."""
        return self.shown(request, obj, vars(obj).pop(TO_SHOW))

    def asked(
        self, request: HttpRequest, record: Record, question: str, form: Form | None = None
    ) -> HttpResponse | None:
        """Return the page that asks whether to make a new one, and how; None once that is confirmed: make it."""
        if is_spent(request):
            self.message_user(request, DONE, messages.WARNING)
            return HttpResponseRedirect(self.page_of(record.pk))
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
        """Return the page that shows the secret; the form that made it is spent."""
        spend(request)
        context = {
            **self.admin_site.each_context(request),
            "title": f"{record}: its {self.shown_name}",
            "secret": secret,
            "advice": self.shown_advice,
            "back": self.page_of(record.pk),
            "opts": self.opts,
        }
        return TemplateResponse(request, "subscriptions/shown_once.html", context, headers=SHOWN_ONCE)


def is_spent(request: HttpRequest) -> bool:
    """Tell whether the form that is sent has made something before."""
    return _form_of(request) in request.session.get(SPENT, ())


def spend(request: HttpRequest) -> None:
    """Note that the form that is sent has made something."""
    if form := _form_of(request):
        request.session[SPENT] = [*request.session.get(SPENT, ()), form][-MAX_SPENT:]


def _form_of(request: HttpRequest) -> str:
    """Return what tells a form from every other, since Django masks its token anew each time; empty: it has none."""
    token = request.POST.get("csrfmiddlewaretoken", "")
    return token and hashlib.sha256(token.encode()).hexdigest()
