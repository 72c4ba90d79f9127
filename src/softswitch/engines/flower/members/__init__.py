"""Who may take part in a run over Flower, and what is believed of what they say."""
