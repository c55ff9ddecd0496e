"""Rate limits and concurrency limits around any model."""
