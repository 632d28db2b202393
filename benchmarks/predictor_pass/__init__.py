"""A prototype: passes of the code predictor for one row, each in one launch."""
