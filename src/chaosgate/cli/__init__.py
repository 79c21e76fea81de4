"""What every command shares: flags, configuration files that are read safely, error messages, processes."""
