"""Generated data with a planted structure: a Zipf law over labels, and words that labels share.

`shape` reads what is requested, `world` and `label_law` are the random structure of all points,
`generate` writes the points into the cache. Files and formats do not belong here.
"""

from headtail.data.synthetic.generate import generate
from headtail.data.synthetic.shape import Shape

__all__ = ["Shape", "generate"]
