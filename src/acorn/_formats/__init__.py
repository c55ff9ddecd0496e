"""Conversion between text and data: JSON, XML, schemas, partial answers, media and redaction."""
