"""The same faults on ours and on rivals: `python -m benchmarks.faults --peers FOLDER`."""
