"""What the fault tests share.

In reading order: exchanges, figures, endpoints, load, audit, verdicts, breakage; the loads of queues and mailboxes;
and of all kinds of work at once: workload, topic_workloads, calls, other_workloads, fault_plans, all_workloads.
"""
