"""The embedded language model."""
