"""fusestripe: HDFS and object stores as one directory tree, read in parallel stripes and cached on NVMe."""

__version__ = "0.1.0"
