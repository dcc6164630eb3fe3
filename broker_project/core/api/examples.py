"""Examples in the OpenAPI document: of requests as serializers declare them, of answers put together from values."""

from collections.abc import Mapping
from typing import Any, Final

TIME: Final = "2026-11-20T09:30:00.125000Z"
LATER: Final = "2026-11-20T09:31:00Z"
ID: Final = 2611200000000001
BODY: Final = '{"order": 4711, "total": "19.90"}'
RECEIPT: Final = "AAlG5AiHyHsADzqSxHsdVUGIlhNM5Tt_"

VALUES: Final[Mapping[str, Any]] = {
    "id": 7,
    "name": "warehouse",
    "description": "Packs and ships orders.",
    "version": 1,
    "created_at": TIME,
    "updated_at": TIME,
    "published_at": TIME,
    "finished_at": LATER,
    "event_type": "Shop.Order.Placed",
    "publisher": "shop",
    "subscriber": "warehouse",
    "subscription_id": 7,
    "message_id": ID,
    "delivery_id": ID,
    "content_type": "application/json",
    "size": len(BODY),
    "body": BODY,
    "filter_string": "eu",
    "endpoint": "https://warehouse.example/hooks/orders",
    "path": "/hooks/orders",
    "method": "POST",
    "position": 1,
    "rate_limit": 50.0,
    "timeout_seconds": 30,
    "outcome": "ROUTED",
    "deliveries": 1,
    "status": "DELIVERED",
    "attempts": 1,
    "number": 1,
    "sequence": 4711,
    "lane": "main",
    "started_at": TIME,
    "duration_ms": 23,
    "status_code": 204,
    "answer_headers": "HTTP/1.1 204 No Content\r\nDate: Fri, 20 Nov 2026 09:30:00 GMT",
    "waiting": 3,
    "delivered": 1,
    "success": 1.0,
    "p50_ms": 23.0,
    "p95_ms": 23.0,
    "p99_ms": 23.0,
    "until": LATER,
    "available": 3,
    "counted_to": 10_000,
    "mailbox_days": 14,
    "ack_seconds": 30,
    "receipt": RECEIPT,
    "in_flight_until": LATER,
    "in_flight_seconds": 30.0,
    "concurrency": 1,
    "max_queued_to_send": 500,
    "max_queued_bytes": 1_048_576,
    "refill_percent": 40,
    "count": 180,
    "total": 180,
    "by_status": {"REJECTED": 180},
    "statuses": ["REJECTED"],
    "changed": 2,
    "cancelled": 12,
    "prefix": "brk_4Jm0aQx7",
    "label": "shop, production",
    "scopes": ["publish", "read"],
    "issued_by": "key brk_0aB1cD2e…",
    "requests_per_minute": 600,
    "why": "There is no filter.",
    "url": "https://shop.example/done?job=7",
    "expires_at": LATER,
    "factor": 2.0,
    "initial_delay_seconds": 1.0,
    "max_delay_seconds": 3600.0,
    "probe_seconds": 60.0,
    "ApiKey.kind": "PUBLISHER",
    "NewApiKey.kind": "PUBLISHER",
    "NewApiKey.token": "brk_4Jm0aQx7Yk2Zb9Tn5Rc8Wd1Ve6Uf3Sg0Hh4Ji7Kl",
    "NewSubscription.signing_secret": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
    "AcceptedEvent.id": ID,
    "ResubmittedEvent.copy_of": ID,
    "Message.id": ID,
    "WholeMessage.id": ID,
    "Delivery.id": ID,
    "WholeDelivery.id": ID,
    "Fetched.id": str(ID),
    "Publisher.name": "shop",
    "Publisher.event_types": ["Shop.Order.Placed"],
    "Publisher.description": "The shop's back end.",
    "EventType.name": "Shop.Order.Placed",
    "EventType.description": "A customer has placed an order.",
    "EventType.sample": BODY,
    "RetryPolicy.name": "patient",
    "RetryPolicy.description": "Retries for a day.",
    "Problem.type": "/api/docs/problems#not_found",
    "Problem.code": "not_found",
    "Problem.title": "Not found",
    "Problem.status": 404,
    "Problem.detail": "There is nothing here, or not for this key.",
}
"""The values of fields, by name, or by schema and name; what is not here is null, or zero, or empty."""
TYPES: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
EMPTY: Final[Mapping[str, Any]] = {"string": "", "integer": 0, "number": 0.0, "boolean": False}


def example_of(schema: dict[str, Any], schemas: Mapping[str, Any], key: str) -> Any:
    """Return a value that fits a schema; `key` is its name, or that of the schema it is in, a dot, and the field's."""
    schema, key = _resolved(schema, schemas, key)
    kinds = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type", "string")]
    for value in (VALUES[name] for name in (key, key.rpartition(".")[2]) if name in VALUES):
        if value in schema.get("enum", [value]) and isinstance(value, tuple(TYPES[kind] for kind in kinds)):
            return value
    if "null" in kinds:
        return None
    if kinds == ["array"]:
        return [example_of(schema["items"], schemas, key)]
    if kinds == ["object"]:
        wanted = {*schema.get("required", ()), *VALUES, *(name.removeprefix(f"{key}.") for name in VALUES)}
        fields = schema.get("properties", {}).items()
        return {name: example_of(field, schemas, f"{key}.{name}") for name, field in fields if name in wanted}
    return schema.get("enum", [TIME if schema.get("format") == "date-time" else EMPTY[kinds[0]]])[0]


def _resolved(schema: dict[str, Any], schemas: Mapping[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """Return what a schema refers to, and its name if it is an object's; null for one of several of which one is."""
    while "properties" not in schema and (
        branches := [schema] if "$ref" in schema else schema.get("allOf") or schema.get("oneOf")
    ):
        if any(branch.get("type") == "null" for branch in branches):
            return {"type": "null"}, key
        schema = branches[0]
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            schema = schemas[name]
            key = name if "properties" in schema else key
    return schema, key
