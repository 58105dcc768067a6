"""Between a comparison and the command that trains for it: the command ends when the comparison does, however it went.

Started as a script, with the command as its argument and one end of a pipe as its standard input, the leader of a
group in which all that the command starts is too. Nothing is ever written to the pipe: it ends with the comparison.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 10.0  # between asking a command to end and ending it


def main() -> None:
    """Run the command, and end as it does: with its exit code, or of its signal."""
    process = subprocess.Popen(sys.argv[1], shell=True, stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a signal to the group is the command's to answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = threading.Event()
    threading.Thread(target=_end_with_parent, args=(ended,), daemon=True).start()
    code = process.wait()
    if ended.is_set():
        os.killpg(0, signal.SIGKILL)  # also what the command has left behind
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_with_parent(ended: threading.Event) -> None:
    os.read(0, 1)
    ended.set()
    os.killpg(0, signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
