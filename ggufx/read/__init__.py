"""GGUF files as they are: sources of bytes, headers, metadata, tensors, shards."""
