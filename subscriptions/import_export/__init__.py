"""Event types as a JSON or YAML file: `{"event_types": [{"name": …, "schema": …}, …]}`.

`yaml_text` (YAML that means what JSON would) · `reading` (from text to entries) · `writing` (the way back).
"""

from subscriptions.import_export.file_format import Entry as Entry
from subscriptions.import_export.file_format import EntryProblem as EntryProblem
from subscriptions.import_export.file_format import FileFormat as FileFormat
from subscriptions.import_export.file_format import RefusedEntries as RefusedEntries
from subscriptions.import_export.file_format import UnreadableFile as UnreadableFile
from subscriptions.import_export.file_format import entries_in as entries_in
from subscriptions.import_export.file_format import file_text as file_text
