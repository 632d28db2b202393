"""One client for several speech servers; see ``__main__``."""
