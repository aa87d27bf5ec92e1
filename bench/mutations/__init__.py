"""A study by mutation: healthy training programs, one error planted in each, and which of them are found and placed.

Programs and errors are independent of each other and of Hypocenter: what is drawn by a seed has not been seen before.
"""
