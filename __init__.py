"""`edl`: elastic, fault-tolerant training for PyTorch with parameter servers."""

__version__ = "0.1.0"
