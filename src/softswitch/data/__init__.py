"""Client data: rows in memory and out of core, splits, and random draws."""
