"""The operator's view: what is on its way and what became of it, to be read and never edited.

`read_only` (what all have in common), then one module a model: `messages`, `deliveries`, `attempts`, `lines`,
`housekeeping`.
"""

from delivery.admin import attempts, deliveries, housekeeping, lines, messages

__all__ = ["attempts", "deliveries", "housekeeping", "lines", "messages"]
