"""Values from blocks and blocks from values, with the compiled paths and the numpy reference. Knows no files."""
