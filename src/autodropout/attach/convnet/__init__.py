"""The sites of a ConvNet and the ways to reach them.

find            sites, with their roles and groups
residual        residual blocks in a recorded forward: main branch and shortcut
normalizations  normalizations of feature maps, each with the place behind it
shortcuts       places on shortcuts that have no normalization
stem            what runs before the first stage of blocks
places          drops behind a module, before one, on an identity shortcut
"""
