"""Write a Lance table as an MDS dataset: which files there are is pure, writing them is apart.

Runs in a process of its own, which reads the table itself: nothing here is used by trainers.
"""
