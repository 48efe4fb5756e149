# Loaded by fish when `fusestripe` is first completed.
_FUSESTRIPE_COMPLETE=fish_source fusestripe 2>/dev/null | source
