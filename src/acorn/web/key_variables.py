"""The environment variables with the access keys of the services. This module imports nothing, for a fast start."""

KEYS_VARIABLE = "ACORN_SERVE_KEYS"
APPROVER_KEYS_VARIABLE = "ACORN_SERVE_APPROVER_KEYS"
