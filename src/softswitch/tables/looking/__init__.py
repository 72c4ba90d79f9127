"""Looking at a table: what its columns are, what they are for, and which should be left out."""
