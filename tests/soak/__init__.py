"""Everything at once for a long time, against peers that misbehave: does anything grow?"""
