"""Schemas of inputs and outputs, and descriptions of what does not fit them."""
