"""Let the nursery of a test's job be a fork of the tests' own (tools/warm_nursery.py).

Every interpreter below the tests begins with this file, so nothing is imported for the others.
"""

import sys

if sys.orig_argv[1:4] == ["-m", "edl.worker", "--nursery"]:
    import json
    import os
    import signal
    import socket

    from surroundings import where  # type: ignore[import-not-found]  # it lies beside this

    def _become_warm(address: str) -> None:
        """Hand this process's descriptors and environment over, and end as the fork does.

        Returns where there is none, or none that is where this process is.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as there:
            try:
                there.connect(address)
            except OSError:
                return
            asked = {
                "strategy": sys.orig_argv[4],
                "env": dict(os.environ),
                "cwd": os.getcwd(),
                "path": sys.path,
                "where": where(os.environ),
            }
            socket.send_fds(there, [json.dumps(asked).encode()], [0, 1, 2])
            if there.recv(16) != b"yes":
                return
            for number in range(3):  # their ends are the fork's alone
                os.close(number)
            status = int(there.recv(16) or b"9")
        if os.WIFSIGNALED(status):
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.WEXITSTATUS(status))

    if _address := os.environ.get("EDL_TEST_NURSERY"):
        _become_warm(_address)
