"""The page: play with an agent, and view the runs of a store."""
