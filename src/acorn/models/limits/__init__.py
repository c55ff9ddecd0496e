"""Rate limits and concurrency limits for any model."""
