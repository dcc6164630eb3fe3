"""Finds lines with work and hands them to a worker.

Read `notify` (hints through Redis), `claim` (lease and fencing epoch), `sweep` (finds what lost hints hide),
`recovery` (after a crash), then `parked_groups` (QUEUE groups that no endpoint can take now).
"""
