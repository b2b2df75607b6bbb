"""A script for `edl launch` that counts each of RECORDS records once, RECORD_S of a process each.

    edl launch benchmarks/counted_script.py FOLDER RECORDS BATCH RECORD_S

At its end FOLDER/counts.npy says how often each record was counted, int64[RECORDS].
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import edl.launch

folder = Path(sys.argv[1])
records, batch, record_s = int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

torch.set_num_threads(1)
dist.init_process_group("gloo")
saved = edl.launch.load()
counts = saved.state.get("counts", torch.zeros(records, dtype=torch.int64))
position = saved.progress.get("position", 0)
begun = time.monotonic()
done = 0
while position < records:
    size = min(batch, records - position)
    share = edl.launch.batch(size)
    mine = torch.zeros(size, dtype=torch.int64)
    mine[share.start : share.stop] = 1
    time.sleep(record_s * (share.stop - share.start))
    dist.all_reduce(mine)
    counts[position : position + size] += mine
    position, done = position + size, done + size
    edl.launch.drain({"counts": counts}, position=position)
    speed = done / (time.monotonic() - begun)
    edl.launch.report(throughput=speed, remaining_s=(records - position) / speed)
if dist.get_rank() == 0:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "counts.npy", counts.numpy())
