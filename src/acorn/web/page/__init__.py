"""The browser page, on which users run an agent and inspect stored runs."""
