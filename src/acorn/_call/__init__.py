"""From a call of an agent to a driven run: plan, start, batches, submitted runs, stored runs."""
