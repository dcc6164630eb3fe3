"""The filter language, which means what PostgreSQL's jsonb operators mean, without PostgreSQL (contract 3).

Read `tree` (what a filter says), `grammar.lark` and `parse` (from text to tree), `document` (what a message looks like
and how much work filters may do), `json_values` (JSON as jsonb compares and prints it), `like`, `compile` (from tree to
function, and the cache of filters), `explain` (why a message qualifies or does not).
"""

from subscriptions.filters.compile import Filter as Filter
from subscriptions.filters.compile import cached_filter as cached_filter
from subscriptions.filters.compile import parse_filter as parse_filter
from subscriptions.filters.compile import validate_filter as validate_filter
from subscriptions.filters.compile import validate_text_path as validate_text_path
from subscriptions.filters.document import Document as Document
from subscriptions.filters.document import Work as Work
from subscriptions.filters.document import text_at as text_at
from subscriptions.filters.explain import Explanation as Explanation
from subscriptions.filters.explain import FilterInput as FilterInput
from subscriptions.filters.explain import Found as Found
from subscriptions.filters.explain import HeaderFilterResult as HeaderFilterResult
from subscriptions.filters.explain import MatchExplanation as MatchExplanation
from subscriptions.filters.explain import Result as Result
from subscriptions.filters.explain import TermResult as TermResult
from subscriptions.filters.explain import explain as explain
from subscriptions.filters.explain import judge as judge
from subscriptions.filters.json_values import FilterFailed as FilterFailed
from subscriptions.filters.parse import FilterSyntaxError as FilterSyntaxError
from subscriptions.filters.parse import Position as Position
