"""OpenTelemetry spans and metrics, made from the journal of a run."""
