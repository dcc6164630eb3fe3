"""The one-command stack: environment, embedded servers, supervisor, demo and the test command.

In reading order: bootstrap · __main__ · command_line · folders · services · guard · children · supervisor ·
folder_lock · ports · kept · secret_keys · ordinary_user · postgres_programs · postgres · redis_server · servers ·
application · setting_up · stacks · up · steps · testing · demo.
"""
