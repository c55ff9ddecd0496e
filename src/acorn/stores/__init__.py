"""Where runs are kept: the port, a store in memory and one in a SQLite file."""
