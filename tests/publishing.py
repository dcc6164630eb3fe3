"""Publishing over the API, for tests."""

from django.test import Client

from delivery.models import Message
from tests.clients import Answer

JSON = "application/json"
EVENT = "Shop.Order.Placed"


def publish(
    client: Client, body: bytes = b"{}", content_type: str = JSON, event: str = EVENT, **headers: str
) -> Answer:
    return client.generic(
        "POST",
        f"/api/v1/events/{event}",
        body,
        CONTENT_TYPE=content_type,  # Django's client leaves it out where the body is empty
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def batch(client: Client, text: str) -> Answer:
    return client.post("/api/v1/events", text.encode(), content_type=JSON)


def stored_bodies() -> list[bytes]:
    return [bytes(message.body) for message in Message.objects.order_by("id")]


def problem(answer: Answer) -> tuple[int, str]:
    assert answer["Content-Type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]
