"""Partial answers: typed snapshots of a model's JSON answer while its text is still arriving."""
