"""How Flower runs, read by it at its start: like every process of the broker, it ends up with the memory it needs."""

from broker_project.processes import look_for_garbage_more_often

look_for_garbage_more_often()
