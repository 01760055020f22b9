"""Class decoders: the probability of cancer, read from the points or from the whole image; a file for each kind.

``glimpse`` reads nothing but a small patch of the image around each point, so that a good prediction needs good points.
``statistics`` reads fixed statistics of some fields around it, relative to the region: more to go by where examples are few.
``global`` (the public design) reads the mask decoder's token, which sees the whole image: there, points may become a code
that says nothing about where the cancer is (docs/decisions/0004).
"""
