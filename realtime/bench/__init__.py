"""``voicewire bench``: clients that behave like agents, in processes of their own, and what they saw."""
