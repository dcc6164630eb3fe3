"""JSON Schemas of event types: what they may be, whether a payload satisfies one, and what is wrong with it.

In reading order: `numbers` (JSON without losing a digit) · `pointers` · `keywords` (where schemas stand in schemas) ·
`limits` (what a schema may be) · `weighing` (what it may refer to) · `compiling` (validators that fetch nothing and
never backtrack) · `looks`, `assertions`, `violations` (what is wrong, and where) · `schema` (all in one value).

`jsonschema-rs` decides; it is told to ask neither network nor files. That something is wrong it says in microseconds.
Its own list of all errors it makes at once and whole, which takes seconds and gigabytes for a body of 1 MiB and
exponential time for nested `anyOf`: so `violations` finds them one by one and stops in time.
"""

from subscriptions.schemas.limits import BrokenSchema as BrokenSchema
from subscriptions.schemas.schema import Schema as Schema
from subscriptions.schemas.schema import compiled as compiled
from subscriptions.schemas.violations import Violation as Violation
