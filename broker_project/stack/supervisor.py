"""Keeps services running: starts them in order, restarts those that end, stops them in reverse."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Self

from broker_project.stack.children import Child
from broker_project.stack.folders import StackFolder
from broker_project.stack.guard import Guard
from broker_project.stack.services import Service

LOOK_EVERY = 0.1
SHORTEN_LOGS_EVERY = 100


class Supervisor:
    """The services of one stack, by name."""

    def __init__(self, folder: StackFolder, *, guard: Guard, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._guard = guard
        self._say = say
        self._children: dict[str, Child] = {}
        self._ended = Event()
        self._watcher = Thread(target=self._watch, name="supervisor", daemon=True)

    def __getitem__(self, name: str) -> Child:
        """Return one service's process."""
        return self._children[name]

    def __iter__(self) -> Iterator[Child]:
        """Give every service's process."""
        return iter([*self._children.values()])

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *services: Service) -> None:
        """Start services side by side and return when all of them are ready."""
        children = [self._add(service) for service in services]
        for child in children:
            child.start()
        for child in children:
            child.wait_until_ready()

    @contextmanager
    def meanwhile(self, *services: Service) -> Iterator[None]:
        """Run further services inside; stop them at the end, and forget them."""
        try:
            self.start(*services)
            yield
        finally:
            for service in services:
                self._children.pop(service.name).stop()

    def stop(self) -> None:
        """Stop the application, then the stores; within each side by side."""
        for are_stores in (False, True):
            stopping = [Thread(target=child.stop) for child in self if child.service.is_store is are_stores]
            for thread in stopping:
                thread.start()
            for thread in stopping:
                thread.join()
        self._ended.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def _add(self, service: Service) -> Child:
        child = Child(service, logs=self._folder.logs, guard=self._guard)
        self._children[service.name] = child
        return child

    def _watch(self) -> None:
        """Restart what ended. This thread outlives what it started: the kernel's death signal is per thread."""
        looks = 0
        while not self._ended.wait(LOOK_EVERY):
            looks += 1
            for child in self:
                self._look_after(child)
                if looks % SHORTEN_LOGS_EVERY == 0:
                    child.shorten_log()

    def _look_after(self, child: Child) -> None:
        try:
            restarted = child.restart_if_ended()
        except (OSError, RuntimeError) as problem:
            self._say(f"{child.service.name} had ended and cannot start: {problem}")
        else:
            if restarted:
                self._say(f"{child.service.name} had ended: started again (log: {child.log})")
