"""The Lance side: the only room that imports lance, and only the download process enters it.

``location`` and ``failures`` are pure and free of lance: the trainer uses them too.
"""
