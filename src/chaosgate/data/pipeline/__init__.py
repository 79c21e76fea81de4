"""From a sample on disk to a batch: decoding, cutting, order, loading."""
