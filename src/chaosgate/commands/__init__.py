"""What every command shares: flags, configuration files that are read safely, errors that teach, processes."""
