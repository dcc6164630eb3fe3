# ruleid: celery-timer
turn.apply_async(args=[queue], countdown=5)
# ruleid: celery-timer
turn.apply_async(args=[queue], eta=tomorrow)
# ruleid: celery-timer
self.retry(countdown=2**tries)
# ruleid: celery-timer
turn.si(queue).set(queue=queue, countdown=1)
# ruleid: celery-timer
options = {"countdown": 5}
# ruleid: celery-timer
turn.apply_async(**{"eta": tomorrow})

# ok: celery-timer
turn.apply_async(args=[queue])
# ok: celery-timer
turn.si(queue, unfinished).set(queue=queue)
# ok: celery-timer
turn.apply_async(args=[queue], expires=5)
# ok: celery-timer
Line.objects.filter(pk=line).update(due_at=tomorrow)
# ok: celery-timer
schedule = {"task": "delivery.chores", "schedule": 30.0, "options": {"expire_seconds": 30}}
# ok: celery-timer
countdown = 5
