"""JSON Schemas of event types (contract 1.1, 2.5).

Read `exact_json` (JSON without losing a digit), `limits` (what a schema may be, so that every check ends soon), then
`violations` (whether a payload satisfies a schema, and what is wrong with it).

`jsonschema_rs` decides, in microseconds; it may fetch nothing. Its own list of errors is made at once and whole, which
takes seconds and gigabytes for a body of 1 MiB, and exponential time for nested `anyOf`: so `violations` finds errors
one by one and stops in time.
"""

from subscriptions.schemas.limits import BrokenSchema as BrokenSchema
from subscriptions.schemas.violations import Schema as Schema
from subscriptions.schemas.violations import Violation as Violation
from subscriptions.schemas.violations import compiled as compiled
