"""The command line: ``fit`` and its kin on LightningCLI, every other command a typed function."""
