"""All kinds of work at once, and whatever can break meanwhile: every kind under every fault, and faults at random.

In reading order: works · strict, several, apart, scripted · queues, replies · replays · mailboxes, calls, letters ·
gathering · scenes, ways, breakages · surviving · plans, storms · the cases.
"""
