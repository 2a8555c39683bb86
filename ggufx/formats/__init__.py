"""The tables: tensor types, metadata value types, file types. Knows nothing else of ggufx."""
