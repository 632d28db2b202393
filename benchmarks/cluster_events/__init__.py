"""Kill, replace, add and cut off gateways and engines under paced replies, and measure what listeners miss."""
