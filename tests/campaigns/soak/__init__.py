"""Long runs of everything at once against misbehaving peers, which find growing resources."""
