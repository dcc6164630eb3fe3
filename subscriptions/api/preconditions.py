"""`ETag` and `If-Match`: the version of what is configured."""

import re
from typing import Final

from django.utils.http import parse_etags
from rest_framework.request import Request

from subscriptions.edit import Versions
from subscriptions.models.base import Versioned

ANY_VERSION: Final = "*"
_VERSION: Final = re.compile(r"[0-9]{1,19}")


def etag_of(record: Versioned) -> str:
    """Return the strong `ETag` of a record's version."""
    return f'"{record.version}"'


def expected_versions(request: Request) -> Versions | None:
    """Return the versions `If-Match` names, None if any will do; what was never an ETag of ours matches nothing."""
    header = request.META.get("HTTP_IF_MATCH")
    if header is None or header.strip() == ANY_VERSION:
        return None
    numbers = (tag.strip('"') for tag in parse_etags(header) if not tag.startswith("W/"))
    return frozenset(int(number) for number in numbers if _VERSION.fullmatch(number))
