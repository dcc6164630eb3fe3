"""Lines at work: order, slots, rates, retries, scripts, settling, queues.
The stateful tests and the storms try everything at once.
"""
