"""The gguf package's names for direct import, kept to its behaviour. Patches nothing."""
