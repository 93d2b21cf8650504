"""The demo model's corpus: seeded dialogues written by a grammar (our own text, CC0)."""
