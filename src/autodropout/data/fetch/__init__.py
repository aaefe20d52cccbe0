"""Fetching datasets: `autodropout data get NAME`.

    catalogue    what there is, where it comes from, how it is checked
    get          one dataset: download, check, unpack, put in place
    download     one file over HTTP, resumed where it was cut
    checks       checksums, and the digests of what an archive holds
    unpack       archives, suspiciously

Nothing is unpacked before it is checked, nothing is put in place before it is unpacked.
"""
