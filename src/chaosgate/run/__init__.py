"""One run: its directory, its identity, what it records."""
