"""Lines at work: order, slots, rates, retries, scripts, settling, queues.
The stateful tests and the random histories try everything at once.
"""
