"""From event types to a file's text."""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from subscriptions.import_export.file_format import FIELDS
from subscriptions.import_export.yaml_text import yaml_of


class FileFormat(StrEnum):
    """What a file is written in."""

    JSON = "json"
    YAML = "yaml"


def file_text(event_types: Iterable[Mapping[str, Any]], written_in: FileFormat) -> str:
    """Return the file of `event_types`, each with all the fields of an entry."""
    content = {"event_types": [{field: one[field] for field in FIELDS} for one in event_types]}
    if written_in is FileFormat.YAML:
        return yaml_of(content)
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
