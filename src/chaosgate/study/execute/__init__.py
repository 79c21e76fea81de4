"""Work through the runs, here or on a cluster."""
