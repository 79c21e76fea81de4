"""The observables inside a real network: at one batch, along depth, while it trains."""
