"""Programs that gain more than the patched `gguf` package gives them, one module each."""
