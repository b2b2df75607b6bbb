"""Run a script with a pause after each of its steps: `slowly.py SECONDS SCRIPT ARGUMENTS...`.

FOLDER/seen (EDL_TEST_FOLDER) gets a line with the number of replicas at each start.
"""

import os
import runpy
import sys
import time
from pathlib import Path

from edl.adaptive import env
from edl.adaptive.loop import AdaptiveDataLoaderHelper

pause_s, script = float(sys.argv[1]), Path(sys.argv[2])
sys.argv = sys.argv[2:]
sys.path.insert(0, str(script.parent))
plain = AdaptiveDataLoaderHelper.take


def slow_take(self, *args, **kwargs):
    time.sleep(pause_s)
    return plain(self, *args, **kwargs)


AdaptiveDataLoaderHelper.take = slow_take
if env.replica_rank() == 0:
    with open(Path(os.environ["EDL_TEST_FOLDER"]) / "seen", "a") as seen:
        print(env.num_nodes(), env.num_replicas(), env.job_id(), env.share_path(), file=seen)
runpy.run_path(str(script), run_name="__main__")
