"""What the page of summaries shows, in this order."""

from collections.abc import Callable
from typing import Final

from analytics.admin import charted, tabled
from analytics.admin.section import Section
from analytics.figures.cached import Looked

SECTIONS: Final[tuple[Callable[[Looked], Section], ...]] = (
    *(charted.reliability, charted.failures, charted.how_long),
    *(charted.backlog, charted.volume, charted.queue_balance),
    *(tabled.callback_replies, tabled.endpoint_shares, tabled.failing),
    *(tabled.ordering_audit, tabled.anomalies, tabled.error_budgets),
)
