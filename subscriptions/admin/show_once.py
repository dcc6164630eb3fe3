"""Secrets in the admin: the answer itself is the page that shows one.

No session, cookie, history, log or cache keeps the secret, as a message for the next page would. To reload that page
is to send its form again, which creates nothing a second time.
"""

import hashlib
from typing import Any, ClassVar, Final

from django.contrib import messages
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from broker_project.core.admin.model_admin import CONFIRMED
from subscriptions.admin.configured import ConfiguredAdmin, Record

NEW_SECRET: Final = "_new_secret"  # noqa: S105 - the name of an attribute
"""The attribute of a new record that has its secret until the request is answered."""
SPENT_FORMS: Final = "spent_forms"
"""The session's list of forms that have created something."""
MAX_SPENT_FORMS: Final = 100
"""The newest are kept: nobody reloads older pages, and a session stays small."""
ALREADY_SENT: Final = "This form was sent before, and nothing was created again. Open a new form to create another."


class ShowingOnceAdmin(ConfiguredAdmin[Record]):
    """Records with a secret each, shown when it is made and never again."""

    shown_name: ClassVar[str]
    shown_advice: ClassVar[str]
    """What users are to do with the secret."""
    shown_template: ClassVar[str] = "subscriptions/shown_once.html"

    def show_when_added(self, record: Record, secret: str) -> None:
        """Let the answer to the form that adds `record` show its secret; for `create`."""
        vars(record)[NEW_SECRET] = secret

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        """Show and take the form; a form that has created a record leads to the list."""
        if self.was_sent_before(request):
            return HttpResponseRedirect(self.list_url())
        return super().add_view(request, form_url, extra_context)  # type: ignore[no-any-return]

    def response_add(self, request: HttpRequest, obj: Record, post_url_continue: str | None = None) -> HttpResponse:  # noqa: ARG002
        """Show the secret, whichever button saved the form."""
        return self.shown(request, obj, vars(obj).pop(NEW_SECRET))

    def asked(
        self, request: HttpRequest, record: Record, question: str, submit: str, form: Form | None = None
    ) -> HttpResponse | None:
        """Return the page that asks before a new secret is made; None once that is confirmed."""
        if self.was_sent_before(request):
            return HttpResponseRedirect(self.change_url(record.pk))
        if request.method == "POST" and CONFIRMED in request.POST and (form is None or form.is_valid()):
            return None
        back = self.change_url(record.pk)
        return self.confirmation(request, question, [record], submit=submit, back=back, form=form)

    def shown(self, request: HttpRequest, record: Record, secret: str) -> HttpResponse:
        """Return the page that shows the secret; the form that made it is spent."""
        if form := _form_of(request):
            request.session[SPENT_FORMS] = [*request.session.get(SPENT_FORMS, ()), form][-MAX_SPENT_FORMS:]
        name, advice, back = self.shown_name, self.shown_advice, self.change_url(record.pk)
        context = {"name": name, "advice": advice, "back": back, **self.shown_besides(request, record, secret)}
        page = self.page(request, self.shown_template, f"{record}: its {name}", secret=secret, **context)
        page.headers["Cache-Control"] = "no-store"
        return page

    def shown_besides(self, request: HttpRequest, record: Record, secret: str) -> dict[str, object]:  # noqa: ARG002
        """Return what the page shows below the secret."""
        return {}

    def was_sent_before(self, request: HttpRequest) -> bool:
        """Tell, also the user, whether the form that is sent has created something before."""
        if _form_of(request) not in request.session.get(SPENT_FORMS, ()):
            return False
        self.message_user(request, ALREADY_SENT, messages.WARNING)
        return True


def _form_of(request: HttpRequest) -> str:
    """Return a digest of the form's CSRF token, which Django masks differently in each form; empty without one."""
    token = request.POST.get("csrfmiddlewaretoken", "")
    return token and hashlib.sha256(token.encode()).hexdigest()
