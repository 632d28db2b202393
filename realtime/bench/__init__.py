"""``voicewire bench``: clients that behave like agents, in processes of their own, and their measurements."""
