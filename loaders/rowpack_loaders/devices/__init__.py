"""What accelerators there are: published ones by name, and the one of this machine."""
