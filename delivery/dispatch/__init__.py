"""Finds lines with work and hands them to a worker.

Read `notify` (hints through Redis), `claim` (lease, fencing epoch, and recovery after a crash), `sweep` (finds what
lost hints hide), then `parked_groups` (QUEUE groups that no endpoint can take now).
"""
