"""Answers that are still being written: JSON in pieces to typed snapshots, at the cost of its length."""
