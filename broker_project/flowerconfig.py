"""Flower's configuration file: read-only behind a login, with less memory."""

from flower import command

from broker_project.read_only_flower import ReadOnlyFlower
from broker_project.server.runtime import collect_garbage_more_often

command.Flower = ReadOnlyFlower
collect_garbage_more_often()
