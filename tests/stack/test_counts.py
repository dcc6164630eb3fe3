"""`./broker counts`: each count is of what its name says."""

import ast

from broker_project.stack import counts


def module(path: str, text: str) -> counts.Module:
    return counts.Module(path, text.count("\n"), ast.parse(text))


def test_a_small_module_with_one_importer_is_named_with_it() -> None:
    small = module("delivery/small.py", "def double(number):\n    return 2 * number\n")
    user = module("delivery/user.py", "from delivery.small import double\n")
    handed_on = module("delivery/__init__.py", "from delivery.small import double\n")
    assert list(counts.small_modules_with_one_importer([small, user, handed_on])) == [
        "delivery/small.py 2, imported by delivery/user.py"
    ]


def test_a_short_function_counts_if_it_is_used_once() -> None:
    once = module("delivery/a.py", "def once():\n    return 1\n\n\ndef twice():\n    return once() + 1\n")
    uses = module("delivery/b.py", "from delivery.a import twice\n\nSUM = twice() + twice()\n")
    functions = [(one, node) for one in (once, uses) for node in counts.functions_in(one)]
    assert list(counts.short_functions_with_one_caller([once, uses], functions)) == ["delivery/a.py:1 once"]


def test_a_class_name_may_stand_for_one_thing_in_an_app() -> None:
    same = [module(f"{app}/{name}.py", "class Run:\n    pass\n") for app, name in (("a", "x"), ("a", "y"), ("b", "x"))]
    assert list(counts.classes_of_one_name(same)) == ["Run: a/x.py, a/y.py"]
