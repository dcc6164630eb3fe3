"""What tests share.

In reading order: factories, api, broker (in the test's process), real_broker (of real processes), brokers; then
what single areas need, such as mailboxes, mailbox_server, stateful_deliveries, spark_runs.
"""
