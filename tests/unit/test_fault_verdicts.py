"""The verdict of a fault case, with what the broker's own audit says of it."""

import pytest

from tests.faults.auditing import Audit
from tests.faults.verdicts import Verdict

FINE = Audit(audited=9, numbered=5, explained=2, unexplained=0, explanations=("not active", "released"))


def of(audit: Audit) -> Verdict:
    verdict = Verdict("some")
    verdict.take(audit)
    return verdict


def test_what_is_explained_passes_and_is_shown() -> None:
    assert str(of(FINE)).endswith(
        "audited 9, numbered 5, explained 2 (not active; released), unexplained 0, seconds 0, passed yes"
    )
    shown = {"audited": 9, "numbered": 5, "explained": 2, "unexplained": 0, "explanations": ["not active", "released"]}
    assert of(FINE).as_object().items() >= {"passed": True, **shown}.items()


@pytest.mark.parametrize(
    ("audit", "reason"),
    [
        (Audit(9, 9, 0, 2, (), ("sent again (delivery 7)",)), "audit: unexplained 2: sent again (delivery 7)"),
        (Audit(0, 0, 0, 0), "audit: nothing was audited"),
    ],
)
def test_what_is_not_explained_does_not_pass_nor_does_an_audit_of_nothing(audit: Audit, reason: str) -> None:
    assert of(audit).as_object().items() >= {"passed": False, "reason": reason}.items()


def test_what_went_wrong_first_is_the_reason() -> None:
    verdict = Verdict("some")
    verdict.fail("call", "lost 1")
    verdict.take(Audit(0, 0, 0, 0))
    assert verdict.reason == "call: lost 1"


def test_a_case_that_was_not_audited_says_nothing_of_it() -> None:
    assert "audited" not in Verdict("some").as_object()
    assert "audited" not in str(Verdict("some"))
