"""The statement that makes the lives of deliveries that lie in a mailbox, beside those of `lives`."""

from typing import Final

MAILBOX: Final = """
INSERT INTO life (n, g, kind, type_id, line_id, subscription_id, status, planned, failing, last, made, first, pause,
                  last_ms, uncertain, fetches)
SELECT n, 100000000 + 2 * n, 'MAILBOX', type_id, %(mailbox_line)s, %(mailbox_subscription)s,
       COALESCE(fate, 'DELIVERED'), COALESCE(requests, 0), 500, 500, made,
       made + pg_temp.draw(n, 50, 600) * interval '1 s', interval '0', 30, false, COALESCE(hand_outs, 1)
  FROM life
  LEFT JOIN (VALUES (0, 'EXPIRED', 0, 0), (1, 'CANCELLED', 0, 0), (2, 'FAILED', 0, 3), (3, 'PENDING', 0, 1),
                    (4, 'DELIVERED', 0, 2), (5, 'DELIVERED', 1, 1), (6, 'EXPIRED', 1, 0))
            AS f (lot, fate, requests, hand_outs) ON lot = pg_temp.draw(n, 51, 20)
 WHERE kind = 'TOPIC' AND g = 2 * n AND n %% 10 = 1
"""
"""Those with a request were sent before their subscription was switched to being fetched."""
