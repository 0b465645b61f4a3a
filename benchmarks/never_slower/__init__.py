"""Is a server that may speculate ever slower than one that may not?"""
