"""Publishing: from what was sent in to a stored message with a delivery for everybody who is to get it.

`publishable` (which event types there are, and for whom) · `accepting` (what is sent in, checked against its own) ·
`publishing` (in one transaction, once for a key) · `open_messages` (how many a publisher has that have not ended) ·
`documents` (what filters see) · `routing` (for whom) · `queue_groups`, `placing` (in which groups, and in whose
lines) · `store_statements`, `storing`.
"""
