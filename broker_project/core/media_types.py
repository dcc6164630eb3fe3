"""What a content type says of a body."""

from functools import lru_cache


@lru_cache(maxsize=256)
def media_type_of(content_type: str) -> str:
    """Return the media type without parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Tell whether a body of this content type must be JSON: `application/json` or any `+json`."""
    media_type = media_type_of(content_type)
    return media_type == "application/json" or media_type.endswith("+json")
