"""Event types as a JSON or YAML file: `{"event_types": [{"name": …, "schema": …}, …]}`.

`yaml_text` (YAML that means what JSON would) · `reading` (from text to entries) · `writing` (the way back).
"""

from subscriptions.event_type_files.reading import Entry as Entry
from subscriptions.event_type_files.reading import EntryProblem as EntryProblem
from subscriptions.event_type_files.reading import RefusedEntries as RefusedEntries
from subscriptions.event_type_files.reading import UnreadableFile as UnreadableFile
from subscriptions.event_type_files.reading import entries_in as entries_in
from subscriptions.event_type_files.writing import FileFormat as FileFormat
from subscriptions.event_type_files.writing import file_text as file_text
