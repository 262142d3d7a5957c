"""The parts that stand for the model: slots, cache, sampling settings, tokens and generation."""
