"""The master: it decides who does which records, and keeps the books."""
