"""The saved forms of the record of a run: JSON and HTML."""
