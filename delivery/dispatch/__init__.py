"""How lines with work are found, and come into one worker's hands.

`wakeups` (hints in Redis and Celery, which may be lost) · `parking` (QUEUE groups that nobody can take now) ·
`claiming` (lease and epoch) · `mending` (what an unclean end left) · `delaying` (what was not to be sent yet) ·
`sweeping` (what a lost hint hides).

Apart from them, `polls`: clients that wait for messages of a mailbox, and who of them is woken; `seats`: how many may.
"""
