"""The filter language: its meaning is that of PostgreSQL's jsonb operators, without PostgreSQL (contract 3).

In reading order: `values`, `printing` (JSON as jsonb sees it) · `like_patterns` · `tree`, `walking` (what a filter
says) · `grammar.lark`, `positions`, `operands`, `tree_making`, `parsing` (from the text to the tree) · `work` (how
much filters may do) · `bodies`, `documents`, `readers` (what a message looks like) · `logic`, `compiling` (from the
tree to a function) · `explaining` · `filter` (all of it in one value).
"""

from subscriptions.filters.document import Document as Document
from subscriptions.filters.document import Work as Work
from subscriptions.filters.document import text_at as text_at
from subscriptions.filters.explain import Explanation as Explanation
from subscriptions.filters.explain import Found as Found
from subscriptions.filters.explain import Result as Result
from subscriptions.filters.explain import TermResult as TermResult
from subscriptions.filters.filter import Filter as Filter
from subscriptions.filters.filter import kept_filter as kept_filter
from subscriptions.filters.filter import parse_filter as parse_filter
from subscriptions.filters.filter import validate_filter as validate_filter
from subscriptions.filters.json_values import FilterFailed as FilterFailed
from subscriptions.filters.parse import FilterSyntaxError as FilterSyntaxError
from subscriptions.filters.parse import Position as Position
