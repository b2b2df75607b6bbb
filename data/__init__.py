"""Readers, which count records and read ranges of them, and the data sets of `edl data`."""
