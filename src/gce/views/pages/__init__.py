"""What the pages share: how a system is drawn, how charts are drawn, and the look of it all (in assets/).

Pages are plain HTML with scripts of our own, and need nothing from a network.
"""
