"""Jobs from Python and notebooks: `edl.train`, `edl.submit`, `edl.job`, `edl.jobs`, `edl.check`."""
