"""What does not answer is not ready, whatever stands in the way."""

from broker_project.stack.ports import any_free
from broker_project.stack.readiness import answers, is_listening, lets_in


def test_where_nobody_listens_nothing_is_ready() -> None:
    port = any_free()
    assert not is_listening(f"redis://127.0.0.1:{port}/0", "celery@worker")
    assert not answers(f"http://127.0.0.1:{port}/")
    assert not lets_in(f"http://127.0.0.1:{port}/", "name:password")
