"""How Flower runs, read by it at its start: closed, and like every process of the broker with the memory it needs."""

from flower import command

from broker_project.closed_flower import ClosedFlower
from broker_project.server.runtime import collect_garbage_more_often

command.Flower = ClosedFlower
collect_garbage_more_often()
