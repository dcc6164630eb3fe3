import importlib
import json
import pickle
from pickle import loads

import yaml

# ruleid: code-from-data
parcel = pickle.loads(received)
# ruleid: code-from-data
parcel = loads(received)
# ruleid: code-from-data
document = yaml.load(text, Loader=yaml.Loader)
# ruleid: code-from-data
document = yaml.load(text)
# ruleid: code-from-data
document = yaml.unsafe_load(text)
# ruleid: code-from-data
value = eval(expression)
# ruleid: code-from-data
exec(script)
# ruleid: code-from-data
module = importlib.import_module(name)

# ok: code-from-data
parcel = json.loads(received)
# ok: code-from-data
document = yaml.safe_load(text)
# ok: code-from-data
document = yaml.load(text, Loader=yaml.SafeLoader)
# ok: code-from-data
module = importlib.import_module("delivery.tasks")
# ok: code-from-data
context.eval(script)
# ok: code-from-data
expression = re.compile(pattern)
# ok: code-from-data
value = ast.literal_eval(text)
