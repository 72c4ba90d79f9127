"""Settings that were left out: chosen before a run by sizes, and during it by what cycles found."""
