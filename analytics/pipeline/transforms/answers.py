"""What an attempt came to, of its answer or of what kept it away."""

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary

NO_STATUS: Final = 0
"""What stands for no answer in `Vocabulary.holding`."""
OF_ITS_OWN: Final = 503
"""The one status that is a class by itself: the endpoint asks to be left alone for a while."""
CLASSES: Final = (2, 3, 4, 5)
"""The first digits of the statuses that classes are made of."""


def error_class(words: Vocabulary) -> Column:
    """Return 2xx, 3xx, 4xx, 503, 5xx or other by `status_code`; without one, the kind of failure by `error`."""
    status = F.col("status_code")
    hundreds = (status / 100).cast("int")
    return (
        F.when(status.isNull(), _failure(words))
        .when(status == OF_ITS_OWN, F.lit(str(OF_ITS_OWN)))
        .when(hundreds.isin(*CLASSES), F.concat(hundreds, F.lit("xx")))
        .otherwise(F.lit("other"))
    )


def failed() -> Column:
    """Return whether the answer was not 2xx, or there was none."""
    return ~F.coalesce(F.col("status_code").between(200, 299), F.lit(False))


def holds(words: Vocabulary) -> Column:
    """Return whether nothing may overtake until the delivery, of this `kind`, is tried again (behaviour 4.7, 4.8, 5.1).

    As its retry policy said then (`meaning`), or else by the rules of its kind; what is of no kind holds nothing.
    """
    has_kind = F.coalesce("kind", F.lit("")) != ""
    return F.coalesce(has_kind & (F.col("meaning") == words.means_hold), _is_among(words.holding))


def ends(words: Vocabulary) -> Column:
    """Return whether the delivery, of this `kind`, is never sent again (behaviour 4.3 to 4.5, 5.1); after 2xx none is.

    As its retry policy said then (`meaning`), or else by the rules of its kind.
    """
    return ~failed() | F.coalesce(F.col("meaning") == words.means_end, _is_among(words.ending))


def sets_aside_numbered(words: Vocabulary) -> Column:
    """Return whether the next one went and the delivery, which has its number by then, stayed.

    What could not be sent at all has none yet where it is set aside, and has one where it is tried again apart.
    """
    is_aside = (F.col("meaning") == words.means_aside) & F.col("status_code").isNotNull()
    said = (F.col("meaning") == words.means_apart) | is_aside
    return F.coalesce(said, ~holds(words) & ~ends(words))


def _is_among(statuses_of_kinds: Sequence[tuple[str, Sequence[int]]]) -> Column:
    status = F.coalesce("status_code", F.lit(NO_STATUS))
    cases = [(F.col("kind") == kind) & status.isin(*statuses) for kind, statuses in statuses_of_kinds if statuses]
    return F.coalesce(reduce(Column.__or__, cases, F.lit(False)), F.lit(False))


def _failure(words: Vocabulary) -> Column:
    """Return the class of the first failure that the error begins with."""
    begins = [F.when(F.col("error").rlike(f"^(?:{pattern})"), kind) for pattern, kind in words.failures]
    return F.coalesce(*begins, F.lit(words.unknown_failure))
