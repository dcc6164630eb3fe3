"""What a measuring process does: each command on standard input is answered by one line of JSON."""

import json
import sys


def obey(target: object) -> None:
    """Call the methods of `target` as told until the input ends; say first that it is there."""
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        command, arguments = json.loads(line)
        print(json.dumps(getattr(target, command)(**arguments)), flush=True)
