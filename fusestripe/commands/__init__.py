"""The commands of the command line, a module each; thin over the parts that do the work."""
