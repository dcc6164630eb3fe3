"""A client of the broker's pull mailbox; needs `requests` and nothing else.

Read `message`, `mailbox` (one method per call of the API), `in_flight` (what a consumer holds), then `reader`.

    reader = MailboxReader(Mailbox("http://127.0.0.1:8000", "archive", "brk_..."), print)
    reader.run()
"""

from broker_client.mailbox import FetchResult, Mailbox
from broker_client.message import BrokerError, Message, ReceiptResult
from broker_client.reader import Handler, MailboxReader

__all__ = ["BrokerError", "FetchResult", "Handler", "Mailbox", "MailboxReader", "Message", "ReceiptResult"]
