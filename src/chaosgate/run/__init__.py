"""One run: its directory, who it is, what it records."""
