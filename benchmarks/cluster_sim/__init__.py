"""A simulated day of a cluster; see ``__main__``."""
