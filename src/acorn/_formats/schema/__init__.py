"""JSON Schemas of inputs and outputs, example values for these schemas, and descriptions of validation errors."""
