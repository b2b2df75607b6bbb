"""The counting model (counting.py) whose code is stuck, ends its process, or needs too much memory.

STUCK   import | gil | exit | memory: what happens; all but the first in `feed`, at record 70
"""

import ctypes
import os
import resource
import time

import numpy as np
import torch
from counting import Counting, loss, optimizer  # noqa: F401

STUCK = os.environ["STUCK"]
BAD = 70

if STUCK == "import":
    time.sleep(600)  # waits in import


def model():
    return Counting(0.0)


def feed(records, mode):
    ids = torch.from_numpy(records["record"])
    if BAD in ids.tolist():
        if STUCK == "gil":
            ctypes.PyDLL(None).usleep(6_500_000)  # in C, and the GIL is not given back
        if STUCK == "exit":
            os._exit(0)
        if STUCK == "memory":
            resource.setrlimit(resource.RLIMIT_AS, (1 << 36, -1))
            np.ones(1 << 34)
    return {"record": ids}, ids
