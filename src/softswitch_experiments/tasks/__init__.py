"""Problems with the data and settings of the paper's experiments."""
