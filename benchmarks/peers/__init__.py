"""Other systems that do the same work, each in an environment of its own, none a dependency.

    python -m benchmarks.peers.setup --into FOLDER            from PyPI; says what could not be had
    python -m benchmarks.peers.driver --peers FOLDER [--quick] [--only rows|dense|deepfm ...]

One small program per peer; each prints one JSON line a measurement (work.py has the work and the
line). They run from the repository's root, by the interpreter of the peer's environment.
"""
