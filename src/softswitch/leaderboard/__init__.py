"""Every method for this problem on the same tasks, tuned equally, in one table: ``softswitch bench``."""
