"""What subscribers fetch themselves: their mailboxes (behaviour 9).

`receipts` (what names a hand-out) · `hand_outs` (whose mailbox, and what it hands out) · `documents` (a message as its
client reads it) · `opening` · `available` (what there is), `fetch_statements`, `fetching` · `looking_out`, `polling`
(waiting for the next message) · `results` (of a receipt), `answer_statements`, `answering` (acknowledged, given back,
prolonged) · `standing` · `endings`, `returning`, `expiring` (what the clock ends) · `purging`.
"""
