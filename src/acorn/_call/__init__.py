"""Calls of agents: code that plans, starts and drives a run, and handles batches, submitted and stored runs."""
