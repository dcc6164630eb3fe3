"""What publishers send: drafts, CloudEvents, QUEUE groups."""
