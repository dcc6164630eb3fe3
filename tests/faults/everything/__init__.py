"""All kinds of work at once, and whatever can break meanwhile: every kind under every fault, and faults at random.

In reading order: works · strict · beside, scripted, others · queues, replies · rounds, replays · mailboxes, calls,
letters · gathering · scenes, ways, admins, breakages · surviving · plans, storms, memory · the cases.
"""
