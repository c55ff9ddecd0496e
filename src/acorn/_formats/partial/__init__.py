"""Partial answers: JSON text in pieces becomes typed snapshots, in linear time."""
