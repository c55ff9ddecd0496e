"""The schemas of inputs and outputs, example values, and descriptions of validation errors."""
