"""Partial answers: typed snapshots of a JSON answer while its text arrives, in linear time."""
