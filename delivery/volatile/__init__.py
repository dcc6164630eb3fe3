"""Messages that are never stored: sent once, or lost (contract 2.9).

`parcels` (a message as it travels within its Celery task) · `queueing` (handed over, and taken once) · `errands` (to
one subscription) · `places`, `pacing` (how many at a time, and how often) · `tallies` (what became of them) ·
`publishing` (in a web process) · `sending` (in a worker).
"""
