"""Whether every report was printed, once, and every reply arrived, once: from the logs, and the broker's books."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from broker_project.stack.demo.arrivals import is_accepted, unflagged
from broker_project.stack.demo.cast import wants_reply
from broker_project.stack.demo.records import Published, Request
from broker_project.stack.demo.verdict import is_right


@dataclass(frozen=True, slots=True)
class Jobs:
    """What became of the jobs of a QUEUE and of the replies to them."""

    published: int
    done_by: Mapping[str, int]
    """How many each worker has taken."""

    requests: Mapping[str, int]
    """How many each worker got."""

    lost: int
    """Jobs that no worker has taken, and replies that did not arrive."""

    duplicated: int
    """Requests for a job that a worker had taken, without saying that they may be; replies that came again."""

    wrong: int
    """Requests and replies that were altered, unsigned or for somebody else."""

    misrecorded: int
    """Jobs that do not stand in the broker's books as DELIVERED, once."""

    wanted: int
    """How many replies there had to be."""

    replied: int


def judge_jobs(
    published: Sequence[Published],
    received: Iterable[Request],
    replies: Sequence[Request],
    books: Mapping[int, int],
) -> Jobs:
    """Judge jobs; the requests of each worker are in the order of their arrival.

    `books` says of each message how many of its deliveries are DELIVERED.
    """
    jobs = {job.number: job for job in published}
    requests = sorted(received, key=lambda each: each.at)
    accepted = {each.number: each for each in reversed(requests) if is_accepted(each.answer)}
    wanted = {number for number in jobs if wants_reply(number)}
    replied = {each.number for each in replies}
    return Jobs(
        published=len(jobs),
        done_by=Counter(each.subscriber for each in accepted.values()),
        requests=Counter(each.subscriber for each in requests),
        lost=len(jobs.keys() - accepted.keys()) + len(wanted - replied),
        duplicated=unflagged(requests) + len(replies) - len(replied),
        wrong=sum(not is_right(each, jobs.get(each.number)) for each in requests) + _misdirected(replies, wanted),
        misrecorded=sum(books.get(job.message, 0) != 1 for job in jobs.values()),
        wanted=len(wanted),
        replied=len(replied),
    )


def _misdirected(replies: Iterable[Request], wanted: Collection[int]) -> int:
    return sum(each.number not in wanted or not each.signed for each in replies)
