"""From a study file to its runs."""
