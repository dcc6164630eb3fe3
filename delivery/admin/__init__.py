"""The operator's pages: deliveries on their way and what happened to them, to be read and never edited.

`read_only` is the base of all pages; then one module for each model. `filter_lab` and `replayable` add a page to the
lists of messages and deliveries, `housekeeping` has what operators rarely need, and `configuration` adds pausing,
backfilling, test events and cancelling to the pages of subscribers and subscriptions.
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
