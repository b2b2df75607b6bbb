"""Start a worker of a launched job, which becomes the user's script: run by path, without `edl`.

It dies with its agent, so that no worker trains on after its node is lost, sends both its streams
to one log, and becomes Python with the arguments it was given.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    agent, arguments = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:  # it died before that
        os._exit(1)
    os.dup2(1, 2)
    os.execv(sys.executable, [sys.executable, "-u", *arguments])


if __name__ == "__main__":
    main()
