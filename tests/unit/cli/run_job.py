"""`edl train` with another master: `python run_job.py SCRIPT LOG_FORMAT`."""

import dataclasses
import sys
from pathlib import Path

from edl.cli import screen
from edl.cli.main import report
from edl.common.settings import JobSettings
from edl.jobs.follow import follow
from edl.jobs.local_source import LocalSource
from edl.jobs.start import start

script, log_format = sys.argv[1:]
settings = JobSettings(job_name="census", model_def="iris", num_ps=1, validation_data="/v.csv")


def train() -> int:
    master = [sys.executable, str(Path(__file__).with_name("fake_master.py")), script]
    job, child = start(settings, master)
    shown = screen.open_screen(log_format, dataclasses.asdict(settings))
    return follow(LocalSource(job, child), shown)


sys.exit(report(train))
