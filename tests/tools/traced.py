"""Tables of a traced application whose times and gains can be told by hand, for the simulator."""

from __future__ import annotations

from pathlib import Path

# A larger batch gains nothing: the best is 10 examples, on two replicas 5 each. Alone it makes a
# step a second, with two on one node in 0.6 s, on two nodes in 0.8 s.
PLACEMENTS = """placement,local_bsz,step_time,sync_time
1,5,0.5,0.0
1,10,1.0,0.0
2,5,0.6,0.1
2,10,1.1,0.1
11,5,0.8,0.3
11,10,1.3,0.3
"""
SCALABILITY = """num_nodes,num_replicas,local_bsz,step_time,sync_time
3,3,5,1.0,0.5
3,3,10,1.5,0.5
3,6,5,1.6,0.5
3,6,10,2.1,0.5
"""
VALIDATION = """progress,iteration,metric,grad_sqr,grad_var
{0},0,0,{2},{3}
{1},0,0,{2},{3}
"""


def write_traces(folder: Path) -> Path:
    """Write the tables of the application: two epochs of 100 steps."""
    folder.mkdir(parents=True)
    (folder / "placements.csv").write_text(PLACEMENTS)
    (folder / "scalability.csv").write_text(SCALABILITY)
    (folder / "validation-10.csv").write_text(VALIDATION.format(100, 200, 1, 0))
    (folder / "validation-20.csv").write_text(VALIDATION.format(101, 202, 3, 0))
    return folder
