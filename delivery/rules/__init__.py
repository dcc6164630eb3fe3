"""What every room goes by: pure rules that know neither database nor network nor clock.

`statuses` (and which change is legal) · `outcomes` (what happened, what it makes of a delivery) · `pauses` (how long
until it is tried again) · `spacings`, `retry_policies` (both, as a subscription wants them) · `due_times` (those that
never come) · `reasons` (what publishers are told) · `filing` (how what is finished leaves the open shelf: one piece of
SQL for all who finish something).
"""
