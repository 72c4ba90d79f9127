"""Functions and programs: what is traced, what is part of a program, when two are the same, and where they are kept."""
