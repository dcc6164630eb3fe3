import os

# ruleid: settings-in-rules
import django.conf
# ruleid: settings-in-rules
import environ
# ruleid: settings-in-rules
from os import environ as variables
# ruleid: settings-in-rules
from django.conf import settings

# ruleid: settings-in-rules
limit = os.environ.get("LIMIT")
# ruleid: settings-in-rules
limit = os.getenv("LIMIT")

# ok: settings-in-rules
from django.core.exceptions import ValidationError
# ok: settings-in-rules
def matches(settings): ...
# ok: settings-in-rules
limit = terms.limit
# ok: settings-in-rules
name = os.path.basename(path)
# ok: settings-in-rules
environment = {}
