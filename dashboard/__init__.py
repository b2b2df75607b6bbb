"""The dashboard: jobs as a page that people watch, of a process of its own (docs/dashboard.md)."""
