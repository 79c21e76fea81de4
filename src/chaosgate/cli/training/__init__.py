"""What fit, validate, test and predict are made of: parser, LightningCLI, processes, help and error messages."""
