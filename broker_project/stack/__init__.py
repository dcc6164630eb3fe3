"""The one-command stack: environment, embedded servers, supervisor, demo and the test command.

In reading order: bootstrap · __main__ · folders · services · guard · children · supervisor ·
postgres · redis_server · stores · application · running · demo.
"""
