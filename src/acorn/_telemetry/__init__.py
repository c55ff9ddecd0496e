"""OpenTelemetry: what a run did as spans and metrics, made from its journal."""
