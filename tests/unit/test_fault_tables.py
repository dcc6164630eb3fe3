"""The verdicts of a run as tables, and in a few lines."""

from tests.faults.auditing import Audit
from tests.faults.figures import Figures
from tests.faults.tables import markdown, summary
from tests.faults.verdicts import Verdict

KILLED = Verdict("worker-killed", Figures(acknowledged=9, delivered=27, duplicated=1, pause=2.5), seconds=20.4)
QUEUE = Verdict("queue/redis-hung", Figures(acknowledged=5, delivered=5), audit=Audit(5), seconds=30.0)
TOPIC = Verdict("topic/redis-hung", Figures(acknowledged=4, delivered=12, duplicated=2), seconds=0.0)
LOST = Verdict("topic/web-killed", Figures(acknowledged=4, delivered=3, lost=1), reason="call: lost 1")


def test_every_case_has_a_row_with_its_figures() -> None:
    lines = markdown([KILLED]).splitlines()
    assert lines[0].startswith("| case | passed | acknowledged | delivered | lost |")
    assert lines[2:] == ["| `worker-killed` | yes | 9 | 27 | 0 | 0 | 0 | 1 | 0 | 0 | 2.5 | - | 20.4 |"]


def test_kinds_of_work_are_crossed_with_what_was_broken() -> None:
    crossed, _ = markdown([KILLED, QUEUE, TOPIC, LOST]).split("\n\n")
    assert crossed.splitlines() == [
        "|  | queue | topic |",
        "| --- | ---: | ---: |",
        "| `redis-hung` | 5 | 12 + 2 |",
        "| `web-killed` |  | **no** |",
    ]


def test_the_end_says_what_has_not_passed_and_how_much_was_audited() -> None:
    assert summary([KILLED, QUEUE, LOST], 125.0).splitlines() == [
        "topic/web-killed: call: lost 1",
        "3 cases in 2 minutes, 2 passed; audited 5, unexplained 0",
    ]
