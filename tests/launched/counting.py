"""A script that counts each record once a pass until `finish` is there; then to the pass's end.

Run by `edl launch`. FOLDER gets a line in `seen` for each start, one in `steps` for each batch, and
`counts` at the end. With `drain` it saves only when it must.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import edl.launch

RECORDS, BATCH = 60, 6
folder = Path(sys.argv[1])
drains = sys.argv[2:] == ["drain"]

torch.set_num_threads(1)
dist.init_process_group("gloo")
saved = edl.launch.load()
counts = saved.state.get("counts", torch.zeros(RECORDS, dtype=torch.int64))
position, passes = saved.progress.get("position", 0), saved.progress.get("passes", 0)
ends = saved.progress.get("ends", False)
share = edl.launch.batch(BATCH)
if dist.get_rank() == 0:
    with open(folder / "seen", "a") as seen:
        print(os.environ["EDL_NUM_NODES"], dist.get_world_size(), file=seen)
while not (ends and position == 0):
    mine = torch.zeros_like(counts)
    mine[position + share.start : position + share.stop] = 1
    stop = torch.tensor([int((folder / "finish").exists())])
    dist.all_reduce(mine)
    dist.all_reduce(stop, dist.ReduceOp.MAX)
    counts += mine
    ends = ends or bool(stop.item())
    position = (position + BATCH) % RECORDS
    passes += position == 0
    progress = {"position": position, "passes": passes, "ends": ends}
    if dist.get_rank() == 0:
        with open(folder / "steps", "a") as steps:
            print(int(counts.sum()) // BATCH, file=steps)
    if drains:
        edl.launch.drain({"counts": counts}, **progress)
    else:
        edl.launch.save({"counts": counts}, **progress)
    edl.launch.report(throughput=100.0, remaining_s=3600.0)
    time.sleep(0.02)
if dist.get_rank() == 0:
    (folder / "counts").write_text(f"{passes} {sorted(set(counts.tolist()))}")
