"""Definitions of models: how they are found, checked and made, and those that are built in."""
