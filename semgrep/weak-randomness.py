# ruleid: weak-randomness
import random
# ruleid: weak-randomness
import random as chance
# ruleid: weak-randomness
from random import choice
# ruleid: weak-randomness
from random import token_bytes as secret

import secrets
from random import SystemRandom
from secrets import choice as chosen
from numpy import random as numbers
from subscriptions import randomness
