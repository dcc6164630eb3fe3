"""Pages of mailboxes in the admin, as tests read them and post to them."""

import re

from django.test import Client
from django.urls import reverse

from subscriptions.models import Subscription


def address(of: Subscription, what: str = "change") -> str:
    return reverse(f"admin:delivery_mailbox_{what}", args=[of.subscriber_id])


def text_of(admin: Client, url: str) -> str:
    """Return what a page says, without its markup."""
    answer = admin.get(url)
    assert answer.status_code == 200
    return " ".join(re.sub(r"<[^>]*>", " ", answer.content.decode()).split())


def told(admin: Client, url: str, **form: object) -> str:
    """Post a form; return what the page that follows has to say."""
    answer = admin.post(url, form, follow=True)
    return " ".join(map(str, answer.context["messages"]))
