"""What the fault tests share.

In reading order: exchanges, figures, endpoints, load, audit, verdicts; then breakage, the loads of queues, mailboxes
and calls, and for all kinds of work at once: workload, topic_workloads, other_workloads, fault_plans, all_workloads.
"""
