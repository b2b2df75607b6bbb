"""Compiled code that every room may use: the compiler's seam, wide arithmetic, ids, and memory."""
