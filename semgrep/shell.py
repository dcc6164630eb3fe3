import os
import subprocess
from subprocess import run

# ruleid: shell
subprocess.run(f"java -jar {path}", shell=True)
# ruleid: shell
run(command, shell=is_windows)
# ruleid: shell
os.system("nice " + command)
# ruleid: shell
os.popen(command)
# ruleid: shell
subprocess.getoutput(command)

# ok: shell
subprocess.run(["java", "-jar", path], check=True)
# ok: shell
subprocess.Popen(command, shell=False)
# ok: shell
os.execv(sys.executable, words)
# ok: shell
run(command)
# ok: shell
os.nice(5)
