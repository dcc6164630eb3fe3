"""A client of the broker's pull mailbox, for applications that cannot be called; it needs `requests` and nothing else.

In reading order: clocks · messages · problems · mailbox (one call, one method) · pauses · dues, hands (what a consumer
holds) · keepers · consumers · reader.

    reader = MailboxReader(Mailbox("http://127.0.0.1:8000", "archive", "brk_..."), print)
    reader.run()
"""

from broker_client.mailbox import Fetched, Mailbox
from broker_client.message import Message, Refused, Result
from broker_client.reader import Handler, MailboxReader

__all__ = ["Fetched", "Handler", "Mailbox", "MailboxReader", "Message", "Refused", "Result"]
