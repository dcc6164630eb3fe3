"""The operator's pages: deliveries on their way and what happened to them, to be read and never edited.

`read_only` is the base of all pages; then one module for each model. `filter_lab`, `dry_run` and `replayable` add pages
to the lists of messages and deliveries, `housekeeping` has what operators rarely need, and `configuration` adds what
delivery can do to the pages of event types, subscribers and subscriptions.
"""

from delivery.admin import (  # noqa: F401 - importing them registers their pages
    attempts,
    callbacks,
    configuration,
    deliveries,
    housekeeping,
    lines,
    mailboxes,
    messages,
    queue_groups,
    replays,
)
