"""OpenTelemetry spans and metrics, created from the journal of a run."""
