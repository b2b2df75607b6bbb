"""The same faults on ours and on rivals, in one run: `python -m benchmarks.faults --peers FOLDER`."""
